"""`advance` alone: a table of what each event does, and invariants over random lives of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rollyard.kinds.batch import BatchRequest, BatchStatus
from rollyard.kinds.rollout import Status
from rollyard.server.batches.advance import (
    Acknowledged,
    BatchCancelled,
    BatchEffect,
    BatchEnded,
    BatchEvent,
    CancelRest,
    DrawTasks,
    GroupAdopted,
    GroupDelivered,
    GroupDrawn,
    GroupEffect,
    GroupEvent,
    RolloutEnded,
    SourceDrained,
    Ticked,
    advance,
    advance_group,
    wanted,
)
from rollyard.store.batch_records import BatchRecord, EndedRollout, GroupRecord, GroupState

BATCH = BatchRecord("default", "b", "digest", "{}", "swe", "d", 100.0)


def request(**fields: Any) -> BatchRequest:
    return BatchRequest.model_validate({"pool": "swe", "n": 4, "dataset": {"name": "d"}, **fields})


def group(number: int = 0, *ended: float | None, **fields: Any) -> GroupRecord:
    made = GroupRecord("default", f"d-g{number}", "d", number, "swe", 4, number, 0, 100.0, 0, "b", **fields)
    return replace(made, ended=tuple(end(i, reward) for i, reward in enumerate(ended)))


def end(sample: int, reward: float | None, tokens: int = 10) -> EndedRollout:
    return EndedRollout(sample, Status.FAILED if reward is None else Status.COMPLETED, reward, tokens, 1, 2.0)


def kinds(effects: tuple[BatchEffect | GroupEffect, ...]) -> list[type]:
    return [type(effect) for effect in effects]


@pytest.mark.parametrize(
    ("fields", "state", "groups"),
    [
        ({"target": 8}, {}, 16),
        ({"target": 8}, {"slots": 200}, 50),
        ({"target": 8}, {"slots": 200, "unfinished": 197, "open": 50}, 1),
        ({"target": 8}, {"open": 16, "unfinished": 64}, 0),
        ({"target": 8}, {"delivered": 6, "informative": 2, "unfinished": 2}, 0),
        ({"target": 8}, {"settled": 98.0, "settled_informative": 9.0}, 80),
        ({"target": 8, "in_flight": 5}, {"open": 2}, 3),
        ({"target": 800}, {}, 256),
        ({"target": 800}, {"slots": 1000}, 1000),
        ({"target": 800}, {"slots": 1000, "open": 900, "unfinished": 3600}, 100),
        ({"target": 800, "n": 8}, {"slots": 2000}, 1000),
        ({"target": 8}, {"slots": 40, "faulty_in_a_row": 9}, 16),
        ({"target": 8}, {"slots": 40, "faulty_in_a_row": 10}, 1),
        ({"target": 8}, {"slots": 40, "faulty_in_a_row": 10, "open": 1, "unfinished": 4}, 0),
        ({"target": 8, "epochs": 1}, {"slots": 40, "faulty_in_a_row": 10}, 16),
        ({"step_groups": 4}, {"slots": 0, "faulty_in_a_row": 5}, 1),
        ({"target": 8}, {"status": BatchStatus.EXPIRED}, 0),
        ({"target": 8}, {"drained": True}, 0),
        ({"target": 8, "dataset": None, "tasks": [{"kind": "math"}]}, {"slots": 200, "open": 16}, 0),
        ({"step_groups": 4, "max_staleness": 0}, {"slots": 1000}, 8),
        ({"step_groups": 4, "max_staleness": 2}, {"slots": 1000}, 24),
        ({"step_groups": 4, "max_staleness": 2}, {"slots": 0}, 8),
        ({"step_groups": 4, "max_staleness": 2}, {"slots": 1000, "delivered": 12}, 0),
        ({"step_groups": 4, "max_staleness": 2}, {"slots": 1000, "delivered": 12, "acknowledged": 3}, 0),
        ({"step_groups": 4, "max_staleness": 2}, {"slots": 1000, "delivered": 12, "acknowledged": 4}, 8),
        ({"filter": {"kind": "none"}, "step_groups": 4, "max_staleness": 0}, {"slots": 1000}, 4),
        ({}, {"slots": 40}, 10),
        ({}, {"slots": 40, "delivered": 20}, 0),
        ({}, {"slots": 40, "delivered": 20, "acknowledged": 15}, 10),
    ],
)
def test_groups_to_draw(fields: dict[str, Any], state: dict[str, Any], groups: int) -> None:
    assert wanted(request(**fields), replace(BATCH, **state)) == groups


def test_an_informative_group_is_delivered_once_it_is_whole() -> None:
    batch = replace(BATCH, open=1, unfinished=4, faulty_in_a_row=7)
    found = group(0)
    for sample, reward in enumerate([1.0, 0.0, 0.0]):
        batch, found, _ = advance_group(request(target=2), batch, found, RolloutEnded(1.0, end(sample, reward)))
    assert (found.state, batch.open, batch.informative, batch.faulty_in_a_row) == (GroupState.INFORMATIVE, 0, 1, 0)
    batch, found, effects = advance_group(request(target=2), batch, found, RolloutEnded(1.0, end(3, None)))
    assert (found.state, found.delivery, batch.delivered, batch.informative) == (GroupState.DELIVERED, 1, 1, 0)
    assert GroupDelivered in kinds(effects)
    assert batch.delivered_lengths.rollouts == 3, "a rollout without a reward has no length that counts"


def test_the_target_ends_the_batch_and_nothing_more_is_drawn() -> None:
    batch = replace(BATCH, open=2, informative=1, unfinished=5, delivered=1)
    last = group(0, 1.0, 0.0, 0.0, state=GroupState.INFORMATIVE)
    batch, _, effects = advance_group(request(target=2), batch, last, RolloutEnded(9.0, end(3, 0.0)))
    assert (batch.status, batch.ended_at, batch.in_flight, batch.unfinished) == (BatchStatus.COMPLETED, 9.0, 0, 0)
    assert effects[-1] == BatchEnded(keep=True)
    assert DrawTasks not in kinds(effects)


@pytest.mark.parametrize(
    ("fields", "keep"),
    [
        ({}, True),
        ({"carry_over": "cancel"}, False),
        ({"dataset": None, "tasks": [{"kind": "math"}]}, False),
        ({"dataset": None, "tasks": [{"kind": "math"}], "series": "s"}, True),
    ],
)
def test_what_is_left_is_kept_where_another_batch_can_have_it(fields: dict[str, Any], keep: bool) -> None:
    *_, effects = advance(request(target=2, **fields), BATCH, BatchCancelled(1.0, keep=True))
    assert effects == (BatchEnded(keep),)


def test_a_group_that_is_given_up_counts_as_waste_and_is_replaced() -> None:
    batch = replace(BATCH, open=3, unfinished=9)
    batch, found, effects = advance_group(
        request(target=2, filter={"min_mean": 0.9, "reward_range": [0, 1]}),
        batch,
        group(0),
        RolloutEnded(1.0, end(0, 0.0)),
    )
    assert (found.state, batch.all_low, batch.open) == (GroupState.UNINFORMATIVE, 1, 2)
    assert (batch.wasted_tokens, batch.unfinished) == (10, 5)
    assert CancelRest() in effects
    batch, _, _ = advance_group(request(target=2), batch, found, RolloutEnded(1.0, end(1, 1.0, tokens=7)))
    assert (batch.wasted_tokens, batch.unfinished) == (17, 5), "one that ended before its cancel arrived"


def test_an_adopted_group_is_judged_by_its_new_batch() -> None:
    whole = group(0, 1.0, 0.0, 0.0, 0.0, state=GroupState.OPEN)
    batch, found, _ = advance_group(request(target=1), BATCH, replace(whole, batch=None), GroupAdopted())
    assert (found.batch, found.state, batch.status) == ("b", GroupState.DELIVERED, BatchStatus.COMPLETED)
    batch, found, _ = advance_group(request(target=1, filter={"max_mean": 0.1}), BATCH, whole, GroupAdopted())
    assert (found.state, batch.all_high, batch.unfinished) == (GroupState.UNINFORMATIVE, 1, 0)


def test_a_stream_completes_when_it_is_drained_and_acknowledged() -> None:
    streamed = request(step_groups=2)
    batch = replace(BATCH, delivered=3, acknowledged=2)
    batch, effects = advance(streamed, batch, SourceDrained(5.0))
    assert (batch.status, effects) == (BatchStatus.RUNNING, ())
    batch, _ = advance(streamed, batch, Acknowledged(6.0, 3))
    assert (batch.status, batch.ended_at) == (BatchStatus.COMPLETED, 6.0)


@given(st.integers(0, 50), st.integers(0, 50))
def test_acknowledging_less_than_before_changes_nothing(before: int, upto: int) -> None:
    batch = replace(BATCH, delivered=50, acknowledged=before)
    batch, _ = advance(request(step_groups=4), batch, Acknowledged(1.0, upto))
    assert batch.acknowledged == max(before, upto)


def test_an_ended_batch_stays_as_it_ended() -> None:
    for status in (status for status in BatchStatus if status.terminal):
        ended = replace(BATCH, status=status, ended_at=1.0)
        for event in (Ticked(1e9, 0), BatchCancelled(2.0, keep=True), SourceDrained(2.0)):
            after, effects = advance(request(target=1, deadline_seconds=1), ended, event)
            assert (after.status, after.ended_at, effects) == (status, 1.0, ())


class Life(RuleBasedStateMachine):
    """A batch whose effects are carried out as a transaction would; the counters are counted again after each rule."""

    rollouts = Bundle("rollouts")

    def __init__(self) -> None:
        super().__init__()
        self.request = request(target=5, filter={"min_mean": 0.2, "reward_range": [0, 1]})
        self.batch = BATCH
        self.groups: dict[str, GroupRecord] = {}
        self.running: set[tuple[str, int]] = set()
        self.source = 40

    def tell(self, event: BatchEvent) -> None:
        before = self.batch
        self.batch, effects = advance(self.request, self.batch, event)
        assert not before.status.terminal or self.batch.status is before.status
        for effect in effects:
            self.carry_out(effect)

    def tell_group(self, found: GroupRecord, event: GroupEvent) -> None:
        before = self.batch
        self.batch, found, effects = advance_group(self.request, self.batch, found, event)
        assert not before.status.terminal or self.batch.status is before.status
        self.groups[found.id] = found
        for effect in effects:
            if isinstance(effect, CancelRest):
                for one in [r for r in self.running if r[0] == found.id]:
                    self.running.discard(one)
                    self.tell_group(
                        self.groups[found.id],
                        RolloutEnded(1.0, EndedRollout(one[1], Status.CANCELLED, None, 0, 0, 0.0)),
                    )
            else:
                self.carry_out(effect)

    def carry_out(self, effect: BatchEffect | GroupEffect) -> None:
        if isinstance(effect, DrawTasks):
            self.draw(min(effect.groups, wanted(self.request, self.batch)))
        elif isinstance(effect, BatchEnded):
            for live in [g for g in self.groups.values() if g.batch == "b" and g.state.live]:
                self.groups[live.id] = replace(live, batch=None)

    def draw(self, count: int) -> None:
        for _ in range(min(count, self.source)):
            self.source -= 1
            made = group(len(self.groups))
            self.running |= {(made.id, sample) for sample in range(4)}
            self.tell_group(made, GroupDrawn())
        if self.source == 0:
            self.tell(SourceDrained(1.0))

    @rule(slots=st.integers(0, 60))
    def tick(self, slots: int) -> None:
        self.tell(Ticked(101.0, slots))

    @rule(pick=st.integers(0, 10**6), reward=st.sampled_from([0.0, 1.0, None]))
    def finish(self, pick: int, reward: float | None) -> None:
        mine = sorted(r for r in self.running if self.groups[r[0]].batch == "b")
        if mine:
            id, sample = mine[pick % len(mine)]
            self.running.discard((id, sample))
            self.tell_group(self.groups[id], RolloutEnded(1.0, end(sample, reward)))

    @invariant()
    def counters_are_those_of_the_groups(self) -> None:
        own = [g for g in self.groups.values() if g.batch == "b"]
        live = [g for g in own if g.state.live]
        assert self.batch.open == sum(g.state is GroupState.OPEN for g in live)
        assert self.batch.informative == sum(g.state is GroupState.INFORMATIVE for g in live)
        assert self.batch.unfinished == sum(4 - len(g.ended) for g in live)
        assert sorted(g.delivery for g in own if g.delivery is not None) == [*range(1, self.batch.delivered + 1)]
        assert all(g.all_ended for g in own if g.state is GroupState.DELIVERED)
        assert self.batch.delivered <= 5
        assert self.batch.drawn == len(self.groups)
        assert self.batch.status.terminal or wanted(self.request, self.batch) == 0 or self.batch.slots == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=80, deadline=None)
