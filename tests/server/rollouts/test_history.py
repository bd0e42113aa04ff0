"""A rollout's history comes out of `step` with the change that it tells of, and stays bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given

from rollyard.core.errors import Fenced
from rollyard.kinds.failure_table import NOT_NEEDED, WEIGHTS_STALE
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.kinds.rollout_history import ChosenEndpoint, HistoryEntry
from rollyard.server.rollouts.history import KEPT_FIRST, KEPT_LAST, MAX_TEXT_CHARS, LeaseChoice, history_of
from rollyard.server.rollouts.step import (
    MAX_LOSSES,
    Cancelled,
    EndpointMoved,
    Event,
    Finished,
    Granted,
    Lost,
    Outdated,
    RunBegun,
    RunStored,
    step,
)
from rollyard.store.base import BlobRef, RolloutRecord
from tests.server.rollouts.test_step import EVENTS, event_of
from tests.support.make import rollout

BLOB = BlobRef("pack", 0, 3, "00")
LAST_EVENTS = {
    Status.QUEUED: {"Queued", "HandedBack", "LeaseLost", "Fault", "Outdated"},
    Status.RUNNING: {"Leased", "StageBegun", "EndpointMoved", "Resumed"},
}
CHOICE = LeaseChoice("MostRoom", 7, 3, {"policy": "WarmPrefix"})


def stepped(record: RolloutRecord, *events: Event) -> RolloutRecord:
    for event in events:
        record, _ = step(record, event)
    return record


def events_of(record: RolloutRecord) -> list[str]:
    return [entry.event for entry in history_of(record).entries]


def granted(at: float = 1.0) -> Granted:
    return Granted(at, "uid/i", "n1", {"policy": "e1"}, "v1", "swe-0", CHOICE)


def finished(fence: int, status: Status, at: float = 9.0, **summary: float) -> Finished:
    error = None if status.scored else RolloutError(stage=Stage.RUN, reason="SandboxLost", message="it died")
    return Finished(at, fence, status, 1.0, error, BLOB, 3, 5, summary=summary)


def test_each_change_of_a_whole_life_is_told() -> None:
    ended = stepped(
        rollout(created_at=0.0),
        granted(),
        Lost(2.0, 1, "NodeAgentStopped", handed_back=True),
        granted(3.0),
        finished(2, Status.INFRA_FAILED, 3.5, init=0.5),
        granted(5.0),
        RunBegun(5.5, 3),
        EndpointMoved(6.0, 3, "policy", "e2", "EndpointFailed", "HTTP 502"),
        RunStored(7.0, 3, BLOB, BLOB, seconds={"init": 0.5, "run": 1.25}),
        Lost(7.5, 3, "Expired"),
        granted(8.0),
        finished(4, Status.COMPLETED, 9.0, init=0.5, run=1.25, eval=0.125),
    )
    queued, leased, handed, _, fault, _, run, moved, eval, lost, scoring, end = history_of(ended).entries
    assert queued == HistoryEntry(at=0.0, event="Queued", attempt=1, stage=Stage.INIT)
    assert leased == HistoryEntry(
        at=1.0,
        event="Leased",
        attempt=1,
        lease=1,
        stage=Stage.INIT,
        reason="MostRoom",
        node="n1",
        allocation="swe-0",
        free=7,
        able=3,
        endpoints={"policy": ChosenEndpoint(id="e1", reason="WarmPrefix")},
        weights_version="v1",
    )
    assert (handed.event, handed.reason, handed.attempt) == ("HandedBack", "NodeAgentStopped", 1)
    assert (fault.event, fault.reason, fault.message, fault.attempt) == ("Fault", "SandboxLost", "it died", 2)
    assert (fault.seconds, fault.retry_at is not None) == ({"init": 0.5}, True)
    assert (run.event, run.stage, run.at, run.attempt) == ("StageBegun", Stage.RUN, 5.5, 3)
    assert (moved.previous, moved.endpoint, moved.reason, moved.message) == ("e1", "e2", "EndpointFailed", "HTTP 502")
    assert (moved.role, moved.stage) == ("policy", Stage.RUN)
    assert (eval.event, eval.stage, eval.seconds) == ("StageBegun", Stage.EVAL, {"init": 0.5, "run": 1.25})
    assert (lost.event, lost.reason, lost.stage) == ("LeaseLost", "Expired", Stage.EVAL)
    assert (scoring.event, scoring.stage, scoring.attempt, scoring.lease) == ("Leased", Stage.EVAL, 3, 4)
    assert (handed.lease, fault.lease, moved.lease, lost.lease, end.lease) == (1, 2, 3, 3, 4)
    assert (end.event, end.status, end.reward, end.at) == ("Ended", Status.COMPLETED, 1.0, 9.0)
    assert end.seconds == {"init": 0.5, "run": 1.25, "eval": 0.125}


def test_each_lost_sandbox_of_one_attempt_is_counted() -> None:
    """Two leases of one attempt would look like one otherwise."""
    record = replace(rollout(created_at=0.0), saved_turns=2)
    for lease in (1, 2, 3):
        record = replace(stepped(record, granted(2.0 * lease)), saved_turns=2)
        record = stepped(record, Lost(2.0 * lease + 1, lease, "Expired"))
    lost = [(e.attempt, e.lease) for e in history_of(record).entries if e.event == "LeaseLost"]
    assert lost == [(1, 1), (1, 2), (1, 3)]


def test_a_rollout_that_never_ran_ends_with_its_reason() -> None:
    cancelled = stepped(rollout(), Cancelled(2.0, NOT_NEEDED, "its group can no longer become informative"))
    end = history_of(cancelled).entries[-1]
    assert (end.status, end.reason, end.message) == (
        Status.CANCELLED,
        "NotNeeded",
        "its group can no longer become informative",
    )
    assert stepped(cancelled, Cancelled(3.0)).history == cancelled.history, "nothing happened, nothing is told"


def test_a_stage_that_a_holder_reported_is_told_once_and_ends_with_its_lease() -> None:
    record = stepped(rollout(), granted(), RunBegun(2.0, 1), RunBegun(3.0, 1))
    assert events_of(record) == ["Queued", "Leased", "StageBegun"]
    assert record.stage is Stage.RUN
    outdated = stepped(record, Outdated(4.0, 1, WEIGHTS_STALE, "v1 is 3 behind"))
    assert (outdated.stage, outdated.attempt) == (Stage.INIT, 2), "it begins again with INIT"
    told = history_of(outdated).entries[-1]
    assert (told.event, told.stage, told.attempt, told.reason) == ("Outdated", Stage.RUN, 1, "WeightsStale")


@given(EVENTS)
def test_no_history_contradicts_its_record(events: Sequence[tuple[str, bool, Status]]) -> None:
    record = rollout()
    for at, (word, stale, status) in enumerate(events):
        before = history_of(record)
        try:
            after, _ = step(record, event_of(word, stale, status, record, float(at)))
        except Fenced:
            continue
        told = history_of(after)
        told_of = replace(after, saved_turns=record.saved_turns) != record  # turns alone have no entry
        assert len(told.entries) + told.dropped == len(before.entries) + before.dropped + told_of
        last = told.entries[-1]
        assert last.event in LAST_EVENTS.get(after.status, {"Ended"})
        if after.status.terminal:
            assert (last.status, last.reward, last.at) == (after.status, after.reward, after.finished_at)
            assert (last.reason, last.attempt) == (after.error.reason if after.error else None, after.attempt)
        if after.status is Status.RUNNING:
            assert (last.stage, last.attempt, last.lease) == (after.stage, after.attempt, after.fence)
            placed = [e for e in told.entries if e.event in ("Leased", "EndpointMoved")]
            shown = placed[-1].endpoint or (placed[-1].endpoints or {})["policy"].id
            assert {"policy": shown} == after.endpoints
        record = after


def test_a_long_history_keeps_its_first_and_last_entries_and_counts_the_others() -> None:
    record, turns = rollout(created_at=0.0), 500
    for turn in range(turns):
        record = stepped(record, granted(2.0 * turn), Lost(2.0 * turn + 1, turn + 1, "Drained", handed_back=True))
    told = history_of(record)
    assert len(told.entries) == 1 + KEPT_FIRST + KEPT_LAST
    assert told.dropped == 2 * turns - KEPT_FIRST - KEPT_LAST
    first, last = told.entries[: told.kept_first], told.entries[told.kept_first :]
    assert [e.at for e in first] == [0.0, *(float(t) for t in range(KEPT_FIRST))]
    assert [e.at for e in last] == [float(t) for t in range(2 * turns - KEPT_LAST, 2 * turns)]
    assert record.attempt == last[-1].attempt + 1 == turns + 1
    assert [e.lease for e in first] == [None, *(t // 2 + 1 for t in range(KEPT_FIRST))]
    assert [e.lease for e in last] == [t // 2 + 1 for t in range(2 * turns - KEPT_LAST, 2 * turns)]


def test_a_history_cannot_grow_by_what_a_node_agent_writes() -> None:
    long, record = '\u2028\n\x00"é' * 10_000, rollout()
    for turn in range(MAX_LOSSES * 10):
        record = stepped(record, granted(), Lost(2.0, turn + 1, long, handed_back=True))
    told = history_of(record).entries
    assert told[-1].reason == long[:MAX_TEXT_CHARS], "it is cut, and otherwise as it was written"
    assert len(record.history) < 64_000
    json.dumps([entry.model_dump(mode="json") for entry in told])


def test_a_number_that_json_does_not_have_is_left_out() -> None:
    ended = stepped(rollout(), granted(), finished(1, Status.COMPLETED, init=float("nan"), run=float("inf"), eval=1.0))
    assert history_of(ended).entries[-1].seconds == {"eval": 1.0}


def test_a_record_of_an_older_release_has_a_history_from_its_next_change_on() -> None:
    record = rollout(created_at=5.0, status=Status.RUNNING, holder="u/i", fence=4, attempt=2)
    assert events_of(record) == ["Queued"]
    ended = stepped(record, finished(4, Status.COMPLETED))
    told = [(e.event, e.at, e.attempt, e.lease) for e in history_of(ended).entries]
    assert told == [("Queued", 5.0, 1, None), ("Ended", 9.0, 2, 4)]


def test_an_entry_of_a_later_release_is_shown_as_far_as_it_is_known() -> None:
    record = rollout(history='[7.0,"Frozen",3,"RUN",{"why":{"x":1},"reason":"Cold"}]\n')
    told = history_of(record).entries[-1]
    assert (told.event, told.attempt, told.stage, told.reason) == ("Frozen", 3, Stage.RUN, "Cold")
