"""Batches over a real store: from a request to delivered groups, with every end in the transaction of its cause."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.core.errors import Conflict, Invalid, NotFound
from rollyard.kinds.batch import BatchKey, BatchRequest, BatchStatus
from rollyard.kinds.failure_table import POOL_DELETED
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.server.batches.service import MAX_REQUEST_BYTES
from rollyard.server.rollouts.result_pruner import ResultPruner
from rollyard.store.base import RolloutFilter, RolloutRecord
from tests.server.batches.conftest import Site, task
from tests.support.played_pool import Played


def alternating(record: RolloutRecord) -> Played:
    """Rewards that differ within every group."""
    return Played(reward=float(record.sample_index % 2))


def key(id: str) -> BatchKey:
    return BatchKey("default", id)


async def delivered(site: Site, id: str, after: int = 0) -> list[str]:
    groups, _ = await site.batches.groups(key(id), after, 1000, 0.0)
    return [group.id for group in groups]


async def test_a_target_batch_draws_filters_and_delivers(site: Site) -> None:
    await site.dataset("d", 50)
    made = await site.create(id="b", dataset={"name": "d"}, target=4)
    assert made.status is BatchStatus.RUNNING
    assert made.drawn == 8, "half of the groups are expected to be informative"
    equal = {f"d-g{number}" for number in range(2, 8)}

    def play(record: RolloutRecord) -> Played:
        return Played(reward=1.0 if record.group in equal else float(record.sample_index % 2))

    await site.pool.play(play)
    view = await site.view("b")
    assert view.status is BatchStatus.COMPLETED
    assert (view.delivered, view.filtered.all_high, view.filtered.all_low) == (4, 6, 0)
    groups, _ = await site.batches.groups(key("b"), 0, 100, 0.0)
    assert [g.delivery for g in groups] == [1, 2, 3, 4]
    assert view.wasted_tokens == 6 * 2 * 10
    assert view.seconds_to_target is not None


async def test_what_is_unfinished_at_the_target_goes_first_in_the_next_batch(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=2)
    leased = await site.pool.lease(4)
    for record in leased:
        await site.pool.finish(record, alternating(record))
    first = await site.view("a")
    assert (first.status, first.drawn) == (BatchStatus.COMPLETED, 4)
    (half,) = await site.pool.lease(1)
    await site.pool.finish(half, Played(reward=0.0))
    second = await site.create(id="b", dataset={"name": "d"}, target=2)
    assert (second.carried_in, second.drawn, second.in_flight) == (2, 1, 3), (
        "three of four are expected to be informative by now"
    )
    (other,) = await site.pool.lease(1)
    assert other.group == half.group, "the rollout that ended between the batches counts"
    await site.pool.finish(other, Played(reward=1.0))
    assert await delivered(site, "b") == [half.group]
    await site.pool.play(alternating)
    assert set(await delivered(site, "a")).isdisjoint(await delivered(site, "b"))


async def test_a_list_of_tasks_is_run_as_a_whole(site: Site) -> None:
    await site.create(id="b", tasks=[task(i).model_dump() for i in range(5)], filter={"kind": "none"})
    await site.pool.play(lambda record: Played())
    view = await site.view("b")
    assert (view.status, view.delivered, view.drawn) == (BatchStatus.COMPLETED, 5, 5)
    groups, _ = await site.batches.groups(key("b"), 0, 100, 0.0)
    assert sorted(g.task_index for g in groups) == [0, 1, 2, 3, 4]


async def test_a_source_that_ends_before_the_target_exhausts_the_batch(site: Site) -> None:
    await site.create(id="b", tasks=[task(1).model_dump(), task(2).model_dump()], target=3)
    await site.pool.play(alternating)
    view = await site.view("b")
    assert (view.status, view.delivered) == (BatchStatus.EXHAUSTED, 2)


async def test_faults_make_no_group_uninformative_and_its_task_returns(site: Site) -> None:
    failed: set[str] = set()

    def play(record: RolloutRecord) -> Played:
        group = str(record.group)
        if (group in failed or not failed) and record.sample_index == 0:
            failed.add(group)
            return Played(status=Status.FAILED)
        return alternating(record)

    await site.create(id="b", tasks=[task(i).model_dump() for i in range(3)], filter={"kind": "nonuniform"})
    await site.pool.play(play)
    view = await site.view("b")
    assert (view.faulty, view.delivered, view.filtered.all_low) == (1, 3, 0)
    groups, _ = await site.batches.groups(key("b"), 0, 100, 0.0)
    assert sorted(g.task_index for g in groups) == [0, 1, 2]


async def test_a_task_that_always_fails_is_given_up_for_its_epoch(site: Site) -> None:
    await site.create(id="b", tasks=[task(1).model_dump()])
    await site.pool.play(lambda record: Played(status=Status.FAILED))
    view = await site.view("b")
    assert (view.status, view.faulty, view.delivered) == (BatchStatus.COMPLETED, 3, 0)


async def test_a_batch_whose_groups_all_fail_tries_one_at_a_time_until_one_has_rewards(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="b", dataset={"name": "d"}, target=4, n=4, filter={"kind": "none", "min_usable": 1})
    assert (await site.view("b")).in_flight == 4
    await site.pool.play(lambda record: Played(status=Status.FAILED), most=8 * 4)
    for failed in range(8, 12):
        view = await site.view("b")
        assert (view.faulty, view.in_flight) == (failed, 1)
        assert f"the last {failed} groups had fewer than 1 rewards, so it tries one group" in str(view.waiting)
        await site.pool.play(lambda record: Played(status=Status.FAILED), most=4)
    await site.pool.play(lambda record: Played(), most=4)
    assert (await site.view("b")).in_flight == 3, "the rest of the target, at once"
    await site.pool.play(lambda record: Played())
    view = await site.view("b")
    assert (view.status, view.delivered, view.faulty) == (BatchStatus.COMPLETED, 4, 12)


async def test_a_group_that_cannot_become_informative_ends_early(site: Site) -> None:
    bounds = {"min_mean": 0.6, "reward_range": [0, 1]}
    await site.create(id="b", n=8, tasks=[task(1).model_dump()], filter=bounds, target=1)
    played = await site.pool.play(lambda record: Played(reward=0.0))
    assert played == 4, "with four of eight at 0 the mean can no longer be 0.6"
    records = await site.rollouts.find(RolloutFilter())
    assert [r.status for r in records] == [Status.COMPLETED] * 4 + [Status.CANCELLED] * 4
    assert (await site.view("b")).filtered.all_low == 1


async def test_the_same_id_attaches_and_another_body_is_refused(site: Site) -> None:
    await site.dataset("d", 5)
    made = await site.create(id="b", dataset={"name": "d"}, target=1)
    assert await site.create(id="b", dataset={"name": "d"}, target=1) == made
    with pytest.raises(Conflict, match="exists with another body"):
        await site.create(id="b", dataset={"name": "d"}, target=2)
    with pytest.raises(Conflict, match="give `series` another name"):
        await site.create(id="c", dataset={"name": "d", "seed": 3}, target=1)
    with pytest.raises(Invalid, match="rollyard datasets put e FILE"):
        await site.create(id="c", dataset={"name": "e"}, target=1)
    with pytest.raises(NotFound):
        await site.view("c")


async def test_the_size_of_a_batch_is_counted_in_bytes(site: Site) -> None:
    await site.dataset("d", 5)
    agent = {"type": "command", "command": "🙂" * (MAX_REQUEST_BYTES // 4)}
    with pytest.raises(Invalid, match=rf"at most {MAX_REQUEST_BYTES} bytes besides its tasks, but this one has 26\d+;"):
        await site.create(id="b", dataset={"name": "d"}, target=1, agent=agent)


async def test_no_user_submits_into_a_group_of_a_batch(site: Site) -> None:
    await site.dataset("d", 5)
    await site.create(id="b", dataset={"name": "d"}, target=1)
    theirs = RolloutRequest.model_validate({"id": "x", "pool": "swe", "task": {"kind": "math"}, "group": "d-g0"})
    with pytest.raises(Conflict, match="belongs to the batches of series 'd'"):
        await site.rollouts.submit("default", [theirs])


async def test_a_batch_goes_around_the_ids_of_a_users_rollouts(site: Site) -> None:
    await site.rollouts.submit(
        "default", [RolloutRequest.model_validate({"id": "d-g0.1", "pool": "swe", "task": {"kind": "math"}})]
    )
    await site.dataset("d", 5)
    await site.create(id="b", dataset={"name": "d"}, target=1, n=2)
    groups = {r.group for r in await site.rollouts.find(RolloutFilter())}
    assert groups == {None, "d-g1", "d-g2"}


async def test_a_stream_draws_no_further_than_its_admission(site: Site) -> None:
    await site.dataset("d", 500)
    await site.create(id="b", dataset={"name": "d"}, filter={"kind": "none"}, step_groups=4, max_staleness=1)
    await site.batches.tick(key("b"), 1000)
    await site.pool.play(lambda record: Played())
    view = await site.view("b")
    assert (view.delivered, view.drawn) == (8, 8), "two steps of four"
    assert view.waiting is not None
    assert "acknowledge" in view.waiting
    await site.batches.acknowledge(key("b"), 3)
    assert await site.pool.play(lambda record: Played()) == 0, "a step is over when all of its groups were used"
    for step in range(1, 6):
        await site.batches.acknowledge(key("b"), 4 * step)
        await site.pool.play(lambda record: Played())
        assert (await site.view("b")).delivered == 4 * (step + 2)
    view = await site.view("b")
    assert view.staleness_mean == round(24 / 28, 4), "all but the first step were drawn one step ahead"
    groups, _ = await site.batches.groups(key("b"), 0, 28, 0.0)
    assert [group.staleness for group in groups] == [0] * 4 + [1] * 24
    with pytest.raises(Invalid, match="at most that many"):
        await site.batches.acknowledge(key("b"), 1000)


async def test_a_deadline_ends_a_batch_and_carries_its_groups_over(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=4, deadline_seconds=60)
    site.clock.turn(61)
    await site.batches.tick(key("a"), 0)
    assert (await site.view("a")).status is BatchStatus.EXPIRED
    assert (await site.create(id="b", dataset={"name": "d"}, target=4)).carried_in == 8


async def test_a_cancelled_batch_cancels_its_rollouts_when_told_so(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=2)
    await site.batches.cancel(key("a"), keep=False)
    assert {r.status for r in await site.rollouts.find(RolloutFilter())} == {Status.CANCELLED}
    assert (await site.create(id="b", dataset={"name": "d"}, target=2)).carried_in == 0


async def test_a_batch_ends_with_its_pool(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=2)
    await site.rollouts.cancel_queued(PoolKey("default", "swe"), POOL_DELETED, "its pool swe was deleted")
    assert (await site.view("a")).status is BatchStatus.CANCELLED
    assert {r.status for r in await site.rollouts.find(RolloutFilter())} == {Status.CANCELLED}


async def test_a_dataset_is_named_once_and_goes_with_its_series(site: Site) -> None:
    await site.dataset("d", 5)
    await site.dataset("d", 5)
    with pytest.raises(Conflict, match="exists with other tasks"):
        await site.dataset("d", 6)
    await site.create(id="a", dataset={"name": "d"}, target=1)
    with pytest.raises(Conflict, match="rollyard batches cancel a"):
        await site.batches.delete_dataset("default", "d")
    await site.batches.cancel(key("a"), keep=True)
    await site.batches.delete_dataset("default", "d")
    assert {r.status for r in await site.rollouts.find(RolloutFilter())} == {Status.CANCELLED}
    assert await site.store.rollouts.transact(lambda tx: tx.batches.series("default", "d")) is None
    await site.dataset("d", 6)


async def test_position_neither_repeats_nor_skips_over_batches(site: Site) -> None:
    await site.dataset("d", 12)
    seen: list[int] = []
    for number in range(6):
        await site.create(id=f"b{number}", dataset={"name": "d"}, target=2, epochs=2, filter={"kind": "none"})
        await site.pool.play(lambda record: Played(), most=4)
    for number in range(6, 20):
        if (await site.create(id=f"b{number}", dataset={"name": "d"}, target=2, epochs=2)).status.terminal:
            break
        await site.pool.play(alternating)
    for number in range(20):
        found = await site.store.batches.delivered(key(f"b{number}"), 0, 100)
        seen += [group.task_index for group in found]
    assert sorted(seen) == sorted([*range(12), *range(12)])


@pytest.mark.parametrize("carry", ["keep", "cancel"])
async def test_discarding_slow_groups_shows_as_bias_and_carrying_them_over_shows_none(site: Site, carry: str) -> None:
    """Every third task takes ten times as long; the clock turns with the work of 16 slots."""
    await site.dataset("d", 40)

    def seconds(record: RolloutRecord) -> float:
        return 10.0 if int(RolloutRequest.model_validate_json(record.request).task.fields["answer"]) % 3 == 0 else 1.0

    running: dict[str, tuple[float, RolloutRecord]] = {}
    for number in range(30):
        id = f"b{number}"
        await site.create(id=id, dataset={"name": "d"}, target=3, carry_over=carry)
        await site.batches.tick(key(id), 16)
        while not (await site.view(id)).status.terminal:
            for record in await site.pool.lease(16 - len(running)):
                running[record.id] = (site.clock.time() + seconds(record), record)
            at, record = min(running.values(), key=lambda entry: entry[0])
            site.clock.turn(max(0.0, at - site.clock.time()))
            del running[record.id]
            if not (await site.rollouts.get("default", record.id)).status.terminal:
                await site.pool.finish(record, Played(float(record.sample_index % 2), seconds=seconds(record)))
    bias = (await site.view("b29")).series_bias
    assert bias.seconds is not None
    if carry == "keep":
        assert bias.seconds == pytest.approx(1.0, abs=0.02)
    else:
        assert bias.seconds < 0.8


async def test_a_small_batch_does_not_wait_behind_the_queue_of_a_large_one(site: Site) -> None:
    """Two batches and a trainer without one get the pool's workers in turns, whoever came first."""
    await site.dataset("large", 200)
    await site.dataset("small", 20)
    await site.create(id="a", dataset={"name": "large"}, target=100, filter={"kind": "none"})
    for record in await site.pool.lease(20):
        await site.pool.finish(record, alternating(record))
    theirs = RolloutRequest.model_validate({"id": "x", "pool": "swe", "task": {"kind": "math"}, "n": 40})
    await site.rollouts.submit("default", [theirs])
    await site.create(id="b", dataset={"name": "small"}, target=10, filter={"kind": "none"})
    order = [str(record.group).partition("-")[0] for record in await site.pool.lease(60)]
    assert {name: order[:30].count(name) for name in ("large", "small", "x")} == {"large": 10, "small": 10, "x": 10}
    assert order.count("small") == 20


@pytest.mark.parametrize(("weight", "turns"), [(1, 15), (2, 20), (0.5, 10)])
async def test_a_batch_gets_turns_by_its_weight(site: Site, weight: float, turns: int) -> None:
    for name, more in (("light", 1), ("heavy", weight)):
        await site.dataset(name, 50)
        await site.create(id=name, dataset={"name": name}, target=40, filter={"kind": "none"}, weight=more)
    order = [str(record.group).partition("-")[0] for record in await site.pool.lease(30)]
    assert abs(order.count("heavy") - turns) <= 1
    later = [str(record.group).partition("-")[0] for record in await site.pool.lease(30)]
    assert abs(later.count("heavy") - turns) <= 1


async def test_the_engine_hears_of_a_tasks_length_where_it_takes_a_priority(site: Site) -> None:
    async def priorities(id: str, **fields: Any) -> dict[str, object]:
        body = {"pool": "swe", "n": 2, "dataset": {"name": "d"}, "target": 4, "filter": {"kind": "none"}}
        request = BatchRequest.model_validate({"id": id, **body, **fields})
        await site.batches.create("default", request, [], engine_priority=fields.get("series") != "fcfs")
        await site.pool.play(lambda r: Played(seconds=3.0 if _task(r) == "0" else 1.0))
        records = await site.rollouts.find(RolloutFilter(limit=5000))
        series = str(fields.get("series", "d"))
        mine = [r for r in records if str(r.group).startswith(f"{series}-g")][-8:]
        return {_task(r): _request(r).sampling.extra.get("priority") for r in mine}

    await site.dataset("d", 4)
    unknown = dict.fromkeys("0123")
    assert await priorities("first") == unknown, "nothing is known in the first epoch"
    assert await priorities("second") == {"0": -100, "1": 33, "2": 33, "3": 33}
    assert await priorities("third", series="fcfs") == unknown
    given = {"extra": {"priority": 7}}
    assert set((await priorities("fourth", series="own", sampling=given)).values()) == {7}


def _request(record: RolloutRecord) -> RolloutRequest:
    return RolloutRequest.model_validate_json(record.request)


def _task(record: RolloutRecord) -> str:
    return str(_request(record).task.fields["answer"])


async def test_a_carried_group_keeps_its_rollouts_however_long_no_batch_takes_it(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=2)
    for record in await site.pool.lease(5):
        await site.pool.finish(record, alternating(record))
    site.clock.turn(365 * 86400.0)
    await site.pool.play(alternating)
    assert await ResultPruner(site.store, site.clock).prune() == 4, "those of the two delivered groups"
    view = await site.create(id="b", dataset={"name": "d"}, target=1)
    assert view.carried_in == 1
    (group,), _ = await site.batches.groups(key("b"), 0, 10, 0.0)
    assert [r.sample_index for r in await site.batches.rollouts_of(group)] == [0, 1]
