"""Plans for pools: by example, and carried out in a random world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.failure_backoff import BACKOFF_CAP_SECONDS, IDLE_CAP_SECONDS
from rollyard.reconcilers.plan import (
    EMPTY_GRACE_SECONDS,
    KEPT_ENDED,
    STAND_IN_SECONDS,
    Member,
    PoolPlan,
    Successor,
    plan_pool,
    template_hash,
)
from tests.support import make

NOW = 1_700_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def pool(*, deleted: bool = False, **status: Any) -> RolloutPool:
    fresh = {"template_hash": FRESH} if status else {}
    metadata = {"deletion_timestamp": at(NOW) if deleted else None}
    return make.rollout_pool("swe", fresh | status, metadata=metadata, replicas=2)


FRESH = template_hash(make.rollout_pool(replicas=2))


def allocation(
    index: int,
    *,
    hash: str = FRESH,
    drain: bool = False,
    deleted: bool = False,
    of: str | None = None,
    after_job: str | None = None,
    **status: Any,
) -> Allocation:
    spec = {"template_hash": hash, "drain": drain, "successor_of": of, "after_job": after_job}
    return make.allocation(f"swe-{index}", deleted=at(NOW) if deleted else None, spec=spec, **status)


def member(index: int, *, ready: bool = True, load: int = 0, state: str | None = "RUNNING", **more: Any) -> Member:
    return Member(allocation(index, job_state=state, **more), ready, load)


def plan(members: list[Member], desired: int, of: RolloutPool | None = None, *, known: bool = True) -> PoolPlan:
    return plan_pool(of or pool(), members, desired, NOW, slurm_known=known)


# pools, by example


def test_what_is_missing_is_made_with_indices_never_used_before() -> None:
    assert plan([], 3).create == (0, 1, 2)
    assert plan([], 2, pool(next_index=7)).create == (7, 8)
    assert plan([member(4)], 3, pool(next_index=2)).create == (5, 6), "a crash may have left the status behind"
    assert plan([], 2).next_index == 2


def test_what_is_as_wanted_is_left_alone() -> None:
    found = plan([member(0), member(1, ready=False, state=None)], 2)
    assert (found.create, found.drain, found.delete) == ((), (), ())


def test_victims_are_not_started_then_idle_then_the_least_loaded_then_the_first_to_end() -> None:
    members = [
        member(0, load=5),
        member(1, load=2, end_time=at(NOW + 900)),
        member(2, load=2, end_time=at(NOW + 600)),
        member(3, ready=False),
        member(4, state="PENDING"),
        member(5, state=None),
    ]
    found = [plan(members, n) for n in (5, 4, 3, 2, 1, 0)]
    assert [len(p.delete) for p in found] == [1, 2, 3, 3, 3, 3]
    assert found[2].delete == ("swe-3", "swe-4", "swe-5")
    assert [p.drain for p in found[2:]] == [(), ("swe-2",), ("swe-1", "swe-2"), ("swe-0", "swe-1", "swe-2")]


def told(index: int, seconds_ago: float, **more: Any) -> Member:
    drained = {"type": "Draining", "status": "True", "reason": "Drain", "last_transition_time": at(NOW - seconds_ago)}
    return member(index, drain=True, conditions=[drained], **more)


def test_what_is_ready_drains_even_where_it_looks_idle() -> None:
    assert (plan([member(0)], 0).drain, plan([member(0)], 0).delete) == (("swe-0",), ())
    first = plan([told(0, 1.0)], 0)
    assert (first.delete, first.again_after) == ((), EMPTY_GRACE_SECONDS - 1.0), "a lease may be on its way to it"
    assert plan([told(0, EMPTY_GRACE_SECONDS)], 0).delete == ("swe-0",), "it should have ended by itself"
    assert plan([told(0, 999.0, load=1)], 0).delete == ()
    assert plan([member(0, drain=True)], 0).delete == (), "nobody has told it yet"


def test_what_drains_counts_no_more_and_is_told_once() -> None:
    members = [member(0), member(1, load=3, drain=True)]
    found = plan(members, 1)
    assert (found.create, found.drain, found.delete) == ((), (), ())
    assert len(plan(members, 2).create) == 1


def test_an_outdated_one_goes_only_when_its_successor_is_ready() -> None:
    old = [member(0, hash="old"), member(1, hash="old")]
    first = plan(old, 2)
    assert (first.create, first.successors, first.drain, first.delete) == ((), (Successor(2, "swe-1"),), (), ())
    waiting = plan([*old, member(2, ready=False, of="swe-1")], 2)
    assert (waiting.create, waiting.successors, waiting.drain, waiting.delete) == ((), (), (), ())
    assert plan([*old, member(2, of="swe-1")], 2).drain == ("swe-1",)
    busy = [member(0, hash="old", load=1), member(1, hash="old", load=1), member(2, of="swe-1")]
    assert plan(busy, 2).drain == ("swe-1",)
    assert plan([member(0), member(1, hash="old", state="PENDING")], 2).delete == ("swe-1",), "nothing is lost by it"


def test_a_successor_that_hangs_is_in_nobodys_way() -> None:
    """A successor with a bad template runs and never gets ready; another template, or the old one again, removes it."""
    serving, hung = member(0, hash="older"), member(1, hash="bad", ready=False, of="swe-0")
    assert plan([serving, hung], 1).delete == ("swe-1",)
    assert plan([member(0), hung], 1).delete == ("swe-1",), "undone"
    assert plan([member(0), member(1, hash="bad", ready=False, load=1, of="swe-0")], 1).delete == ()
    assert plan([member(1, hash="bad", ready=False)], 1).delete == (), "nobody else serves: it may yet get ready"


def test_what_drains_keeps_its_place_beside_the_surge() -> None:
    bounds = {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    of = make.rollout_pool(**bounds)
    members = [member(i, load=1, drain=i > 0) for i in range(4)]
    assert len(plan(members, 4, of).create) == 1, "4 and a surge of 1"
    assert len(plan(members[:2], 4, of).create) == 3


def test_one_that_is_suspended_or_silent_for_long_is_made_up_for_within_the_surge_until_it_is_back() -> None:
    def quiet(index: int, seconds: float, state: str = "SUSPENDED", **more: Any) -> Member:
        unready = {"type": "Ready", "status": "False", "reason": "x", "last_transition_time": at(NOW - seconds)}
        found = member(index, ready=False, state=state, ready_at=at(NOW - 999), conditions=[unready])
        return replace(found, **more)

    long = STAND_IN_SECONDS + 1
    assert plan([member(0), quiet(1, STAND_IN_SECONDS - 1)], 2).create == (), "it may be back soon"
    assert plan([member(0), quiet(1, long)], 2).create == (2,)
    assert plan([member(0), quiet(1, long, "RUNNING", silent=True)], 2).create == (2,), "frozen, or cut off"
    assert plan([member(0), quiet(1, long, "RUNNING")], 2).create == (), "it is heard, and loads other weights, say"
    assert len(plan([quiet(0, long), quiet(1, long)], 2).create) == 1, "the surge is 1"
    assert plan([member(0), quiet(1, long), member(2)], 2).delete == (), "it holds its place until it is back"
    back = plan([member(0), member(1), member(2)], 2)
    assert len(back.drain) == 1
    assert plan([quiet(1, long)], 0).delete == ("swe-1",)


def test_a_job_that_slurm_only_cleans_up_after_holds_no_place() -> None:
    assert len(plan([member(0), member(1, state="COMPLETING")], 2).create) == 1


def test_nothing_is_done_while_slurm_cannot_be_read_but_tearing_down() -> None:
    members = [member(0, hash="old"), member(1), member(2), member(3, state="FAILED")]
    for desired in (0, 1, 9):
        found = plan(members, desired, known=False)
        assert (found.create, found.drain, found.delete) == ((), (), ())
    gone = plan(members, 9, pool(deleted=True), known=False)
    assert set(gone.delete) == {m.name for m in members}


def test_a_deleted_pool_lets_busy_ones_finish_and_goes_last() -> None:
    members = [member(0, load=2), member(1), member(2, state=None), member(3, load=1, drain=True)]
    found = plan(members, 2, pool(deleted=True))
    assert (found.create, found.drain, set(found.delete)) == ((), ("swe-0",), {"swe-1", "swe-2"})
    assert not found.removable
    assert not plan([member(1, deleted=True)], 2, pool(deleted=True)).removable
    assert plan([], 2, pool(deleted=True)).removable


def test_a_failure_is_counted_once_and_waited_for() -> None:
    failed = member(0, state="FAILED", end_time=at(NOW))
    first = plan([failed], 1)
    assert (first.create, first.ends.failures, first.ends.last_failure, first.again_after) == ((), 1, NOW, 1.0)
    known = pool(next_index=1, failures=1, last_failure_time=at(NOW))
    assert plan_pool(known, [failed], 1, NOW + 0.5, slurm_known=True).ends.failures == 1
    later = plan_pool(known, [failed], 1, NOW + 1.0, slurm_known=True)
    assert (later.create, later.ends.failures, later.again_after) == ((1,), 1, None)


def test_the_back_off_doubles_up_to_its_cap_and_stays_there() -> None:
    def waits(members: list[Member]) -> list[float | None]:
        known = [pool(failures=n, last_failure_time=at(NOW)) for n in (1, 2, 3, 6, 7, 8, 1025, 100_000)]
        return [plan(members, len(members) + 1, of).again_after for of in known]

    assert waits([member(0)]) == [1.0, 2.0, 4.0, 32.0, *[BACKOFF_CAP_SECONDS] * 4]
    assert waits([]) == [1.0, 2.0, 4.0, *[IDLE_CAP_SECONDS] * 5], "nothing serves: it is tried more often"


def test_a_few_ended_ones_are_kept_to_look_at() -> None:
    ends = [member(n, state="FAILED") for n in range(KEPT_ENDED + 2)]
    assert plan(ends, 0).delete == ("swe-0", "swe-1")
    assert plan([member(9, state="COMPLETED", drain=True)], 0).delete == ("swe-9",)


# pools, in a random world


@dataclass
class World:
    """Carries plans out, lets jobs come up and work end, as chance will have it."""

    pool: RolloutPool
    members: list[Member]
    now: float = NOW
    largest: int = 0

    def follow(self, desired: int) -> bool:
        """Plan and do it; whether there was anything to do."""
        found = plan_pool(self.pool, self.members, desired, self.now, slurm_known=True)
        made = len(found.create) + len(found.successors)
        self.largest = max(self.largest, made + sum(m.active for m in self.members))
        last = at(found.ends.last_failure) if found.ends.last_failure is not None else None
        status = {
            "next_index": found.next_index,
            "template_hash": found.ends.template,
            "failures": found.ends.failures,
            "last_failure_time": last,
        }
        self.pool = evolve(self.pool, status=evolve(self.pool.status, **status))
        self.members = [self._told(m, found) for m in self.members]
        self.members += [member(index, ready=False, state=None) for index in found.create]
        self.members += [member(s.index, ready=False, state=None, of=s.of) for s in found.successors]
        return bool(found.create or found.successors or found.drain or found.delete)

    def _told(self, m: Member, found: PoolPlan) -> Member:
        if m.name in found.delete:
            return replace(m, allocation=_changed(m.allocation, "metadata", deletion_timestamp=at(self.now)))
        if m.name in found.drain:
            return replace(m, allocation=_changed(m.allocation, "spec", drain=True))
        return m

    def pass_time(self, moved: list[bool]) -> None:
        """Deleted members go, drained ones empty and end; some others start or end their work."""
        self.now += 61.0
        kept = [m for m in self.members if not m.deleting]
        self.members = [self._later(m, i < len(moved) and not moved[i]) for i, m in enumerate(kept)]

    def _later(self, m: Member, stuck: bool) -> Member:
        if stuck or not m.live:
            return m
        if m.allocation.spec.drain:
            ended = _changed(m.allocation, "status", job_state="COMPLETED", end_time=at(self.now))
            return replace(m, load=m.load - 1) if m.load else Member(ended, ready=False)
        return replace(m, allocation=_changed(m.allocation, "status", job_state="RUNNING"), ready=True)


def _changed(obj: Allocation, part: str, **update: Any) -> Allocation:
    return evolve(obj, **{part: evolve(getattr(obj, part), **update)})


@st.composite
def worlds(draw: st.DrawFn) -> World:
    states = st.sampled_from([None, "PENDING", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", JobState.GONE])
    members = []
    for index in range(draw(st.integers(0, 6))):
        state = draw(states)
        over = state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", JobState.GONE)
        members.append(
            member(
                index,
                ready=state == "RUNNING" and draw(st.booleans()),
                load=draw(st.integers(0, 3)) if state == "RUNNING" else 0,
                state=state,
                hash=draw(st.sampled_from([FRESH, "old"])),
                drain=draw(st.booleans()),
                deleted=draw(st.booleans()),
                end_time=at(NOW - 5) if over else None,
            )
        )
    return World(pool(), members)


@given(worlds(), st.integers(0, 5), st.lists(st.lists(st.booleans(), max_size=8), max_size=6))
@settings(max_examples=150, deadline=None)
def test_plans_carried_out_lead_to_what_is_wanted(world: World, desired: int, chances: list[list[bool]]) -> None:
    before = sum(m.active for m in world.members)
    for moved in chances:
        world.follow(desired)
        world.pass_time(moved)
    for _ in range(60):
        busy = world.follow(desired)
        at_rest = all(m.ready if m.active else not m.live for m in world.members if not m.deleting)
        settled = not busy and at_rest and not any(m.deleting for m in world.members)
        world.pass_time([])
        if settled:
            break
    else:
        raise AssertionError("never settled")
    active = [m for m in world.members if m.active]
    assert len(active) == desired
    assert all(m.allocation.spec.template_hash == FRESH for m in active)
    assert world.largest <= max(before, desired + 1 if desired else 0), "one more than wanted at most, while rolling"
    indices = [m.index for m in world.members]
    assert len(set(indices)) == len(indices)


@given(worlds(), st.integers(0, 5))
@settings(deadline=None)
def test_without_outdated_ones_a_plan_never_goes_above_what_is_wanted(world: World, desired: int) -> None:
    fresh = [replace(m, allocation=_changed(m.allocation, "spec", template_hash=FRESH)) for m in world.members]
    found = plan(fresh, desired)
    active = sum(m.active for m in fresh)
    assert len(found.create) + active <= max(active, desired)
    assert not (found.create and (found.drain or any(m.active and m.name in found.delete for m in fresh)))


@given(worlds(), st.lists(st.integers(25_000, 28_000), min_size=6, max_size=6), st.integers(0, 5))
@settings(deadline=None)
def test_nothing_busy_is_ended_and_no_one_goes_before_a_better_victim(
    world: World, ends: list[int], desired: int
) -> None:
    members = [
        replace(m, allocation=_changed(m.allocation, "spec", template_hash=FRESH))
        if not m.started or m.allocation.status.is_ended
        else replace(
            m,
            allocation=_changed(
                _changed(m.allocation, "spec", template_hash=FRESH), "status", end_time=at(NOW + ends[i])
            ),
        )
        for i, m in enumerate(world.members)
    ]
    found = plan(members, desired)
    assert not [m for m in members if m.name in found.delete and m.live and (m.ready or m.load)]
    goes = {*found.drain, *found.delete}
    rank = {m.name: (m.started, m.load, m.ends or float("inf")) for m in members if m.active}
    stays = [r for name, r in rank.items() if name not in goes]
    assert all(rank[name] <= min(stays, default=rank[name]) for name in goes & rank.keys())
    assert len(stays) == min(len(rank), desired)


@given(worlds(), st.integers(0, 5))
@settings(deadline=None)
def test_the_same_view_gives_the_same_plan(world: World, desired: int) -> None:
    assert plan(world.members, desired) == plan(world.members, desired)
