"""When successors are submitted, so that each is ready before what it replaces ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.core.clock import as_text
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.plan import STUCK_SECONDS, Member, PoolPlan, Successor, blocked, plan_pool, template_hash
from rollyard.reconcilers.renewal import (
    before_expiry,
    can_take_work,
    due_times,
    learn_startup,
    planned_successors,
    startup_seconds,
    surge_holder,
)
from tests.support import make

NOW = 1_700_000_000.0
LIMIT = 3600.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def pool(strategy: str = "Overlap", surge: int = 1, *, startup: float | None = 100.0) -> InferencePool:
    renewal = {"strategy": strategy, "beforeExpirySeconds": 300, "maxSurge": surge}
    status = {"startupSeconds": startup}
    return make.inference_pool(status=status, allocation={"timeLimit": "01:00:00"}, renewal=renewal)


def member(
    index: int,
    ends_in: float | None = LIMIT,
    *,
    ready: bool = True,
    of: str | None = None,
    after: str | None = None,
    load: int = 0,
    hash: str | None = None,
    **status: Any,
) -> Member:
    state = "RUNNING" if ends_in is not None else "PENDING"
    facts = {"job_state": state, "job_id": str(index), "end_time": at(NOW + ends_in) if ends_in is not None else None}
    spec = {"template_hash": hash or template_hash(pool()), "successor_of": of, "after_job": after}
    allocation = make.allocation(f"policy-{index}", pool="InferencePool", spec=spec, **(facts | status))
    return Member(allocation, ready and ends_in is not None, load)


def plan(of: InferencePool, members: list[Member], desired: int = 1) -> PoolPlan:
    return plan_pool(of, members, desired, NOW, slurm_known=True)


def test_a_successor_is_due_before_its_predecessor_gets_no_more_new_work() -> None:
    for of in (make.rollout_pool(allocation={"timeLimit": "04:00:00"}), make.inference_pool()):
        ends = NOW + before_expiry(of)
        assert can_take_work(of, ends, NOW + 5)
        assert not can_take_work(of, ends, ends - 20)


def test_a_successor_is_submitted_as_much_earlier_as_starting_took() -> None:
    assert plan(pool(), [member(0, 401)]).successors == ()
    assert plan(pool(), [member(0, 399)]).successors == (Successor(1, "policy-0"),)
    assert plan(pool(startup=None), [member(0, 399)]).successors == (), "a guess until it was measured"


def test_the_old_one_goes_when_the_successor_is_ready_and_not_before() -> None:
    old = member(0, 200, load=3)
    for successor in (member(1, None, of="policy-0"), member(1, of="policy-0", ready=False)):
        waiting = plan(pool(), [old, successor])
        assert (waiting.create, waiting.successors, waiting.drain, waiting.delete) == ((), (), (), ())
    assert plan(pool(), [old, member(1, of="policy-0")]).drain == ("policy-0",)
    last_moment = plan(pool(), [member(0, 5, load=3), member(1, of="policy-0", ready=False)])
    assert (last_moment.drain, last_moment.delete) == ((), ()), "the successor starts without that"


def test_a_successor_that_is_ready_early_works_beside_the_old_one_until_its_time_has_come() -> None:
    successor = member(1, 4 * LIMIT, of="policy-0")
    early, late = plan(pool(), [member(0, 301), successor]), plan(pool(), [member(0, 299), successor])
    assert (early.create, early.successors, early.drain, early.delete) == ((), (), (), ())
    assert late.drain == ("policy-0",)
    assert plan(pool(), [member(0, 3000, hash="old"), successor]).drain == ("policy-0",), "out of date: at once"
    wrong = member(1, 4 * LIMIT, of="policy-0", hash="taken back")
    assert plan(pool(), [member(0, 3000), wrong]).drain == ("policy-0",), "one that is out of date waits for nothing"


def test_the_old_one_goes_before_its_time_only_where_its_place_is_wanted() -> None:
    successor = member(2, 4 * LIMIT, of="policy-0")
    for next_ends, drained in ((401, ()), (399, ("policy-0",))):
        assert plan(pool(), [member(0, 350), member(1, next_ends), successor], 2).drain == drained
        assert plan(pool(surge=2), [member(0, 350), member(1, next_ends), successor], 2).drain == ()


def test_one_long_wait_in_the_queue_does_not_renew_what_has_just_begun() -> None:
    of = pool(startup=3 * LIMIT)
    assert plan(of, [member(0, 1201)]).successors == ()
    assert plan(of, [member(0, 1199)]).successors == (Successor(1, "policy-0"),), (
        "a quarter of the walltime earlier at most"
    )
    assert plan(of, [member(i, LIMIT - 5) for i in range(9)], 9).successors == (), "however many end together"


STEP, BOOT = 20.0, 40.0


@given(
    st.lists(st.floats(0.92 * LIMIT, LIMIT), min_size=1, max_size=6), st.integers(1, 3), st.floats(BOOT + 3 * STEP, 2e4)
)
@settings(max_examples=20, deadline=None)
def test_none_goes_long_before_its_end_and_none_ends_before_another_is_there(
    ends: list[float], surge: int, known: float
) -> None:
    of = pool(surge=surge, startup=known)
    members = {f"policy-{i}": member(i, end) for i, end in enumerate(ends)}
    booting: dict[str, float] = {}
    for step in range(int(2.5 * LIMIT / STEP)):
        now = NOW + step * STEP
        for name in [name for name, ready_at in booting.items() if ready_at <= now]:
            members[name] = replace(members[name], ready=True)
            del booting[name]
        found = plan_pool(of, list(members.values()), len(ends), now, slurm_known=True)
        for name in found.drain:
            left = (members.pop(name).ends or 0.0) - now
            rounds = max(0.0, len(members) / surge - 1)
            assert left <= before_expiry(of) + (rounds and (rounds + 1) * startup_seconds(of))
        assert min((m.ends or 0.0) for m in members.values()) > now, "it went before it had to"
        for made in found.successors:
            new = member(made.index, now + LIMIT - NOW, of=made.of, ready=False)
            members[new.name], booting[new.name] = new, now + BOOT
        assert len(members) <= len(ends) + surge
        assert sum(m.ready for m in members.values()) >= len(ends)
        of = evolve(of, status=evolve(of.status, next_index=found.next_index or len(ends)))


def test_no_more_successors_than_the_surge_stand_beside_the_others() -> None:
    members = [member(i, 100 + i) for i in range(4)]
    assert [s.of for s in plan(pool(surge=2), members, 4).successors] == ["policy-0", "policy-1"]
    assert plan(pool(surge=1), [*members, member(4, None, of="policy-0")], 4).successors == ()


def test_in_replace_the_successor_waits_for_the_job_to_end() -> None:
    of = pool("Replace")
    assert plan(of, [member(0, 399)]).successors == (Successor(1, "policy-0", after_job="0"),)
    successor = member(1, None, of="policy-0", after="0", reason="Dependency")
    assert plan(of, [member(0, 200, load=1), successor]).drain == (), "it serves to the last"
    assert plan(of, [member(0, 10, load=1), successor]).drain == ("policy-0",)
    outdated = member(0, 3000, load=1, hash="old")
    assert plan(of, [outdated, successor]).drain == ("policy-0",), "nothing else would ever end it"


def test_a_limit_that_holds_the_successor_is_told_with_the_gap() -> None:
    old = member(0, 200)
    assert blocked(pool(), [old, member(1, None, of="policy-0", reason="Priority")], NOW) is None
    found = blocked(pool(), [old, member(1, None, of="policy-0", reason="QOSMaxJobsPerUserLimit")], NOW)
    assert found is not None
    assert found[0] == "QOSMaxJobsPerUserLimit"
    assert found[1].startswith(f"allocation policy-0 ends at {as_text(NOW + 200)} and its successor policy-1 waits")
    assert (
        f"expected gap: at least {startup_seconds(pool()):.0f} s, the start-up of a successor, and its wait" in found[1]
    )
    late = member(1, None, of="policy-0", reason="Resources", startTime=at(NOW + 500))
    found = blocked(pool(), [old, late], NOW)
    assert found is not None
    assert found[0] == "QueueTooLong"
    told = f"expected gap: about 400 s, with a start at {as_text(NOW + 500)}, which Slurm expects, and the start-up"
    assert found[1].endswith(told)
    others = [member(2, 250), member(3, 300), member(4, 3000)]
    found = blocked(pool(), [old, late, *others], NOW)
    assert found is not None
    assert found[1].endswith(
        "; policy-2, policy-3 end meanwhile too, and maxSurge lets no more successors be submitted"
    )
    present = [m.allocation for m in (old, late, *others)]
    assert surge_holder(pool(), present) is late.allocation
    assert surge_holder(pool(surge=2), present) is None, "a place is free"
    soon, *_, last = planned_successors(pool(), present)
    assert (soon.allocation, soon.waits_for, soon.submit_at) == ("policy-2", late.name, NOW + 500)
    assert (last.allocation, last.waits_for, last.take_over_at) == ("policy-4", None, NOW + 3000 - 300)
    unknown = evolve(late.allocation, status=evolve(late.allocation.status, start_time=None))
    (soon, *_) = planned_successors(pool(), [m.allocation for m in (old, *others)] + [unknown])
    assert (soon.waits_for, soon.submit_at) == (late.name, None), "Slurm expects it at no time yet"


def test_a_successor_without_a_start_time_is_told_once_slurm_had_time_or_none_is_left() -> None:
    """Nodes drained: Slurm names a reason that is not a limit, and starts nothing, to the last second of the walltime."""

    def told(old: Member, reason: str, seconds: float) -> tuple[str, str] | None:
        waits = member(1, None, of="policy-0", reason=reason, jobId="2", intendedAt=at(NOW))
        return blocked(pool(), [old, waits], NOW + seconds)

    old = member(0, 200)
    assert told(old, "Resources", 1) is None
    found = told(old, "Resources", STUCK_SECONDS + 1)
    assert found is not None
    assert found[0] == "Resources"
    assert "nodes that it could run on are busy" in found[1]
    assert told(member(0, 20), "Resources", 1) is not None, "it could not be ready any more"
    assert told(old, "ReqNodeNotAvail, UnavailableNodes:n[1-4]", 1) is not None, "it comes free by nobody's end"


def test_an_end_without_a_successor_is_told_where_successors_fail() -> None:
    of, old = pool(), member(0, 100)
    assert blocked(of, [old], NOW) is None
    found = blocked(of, [old], NOW, "failed: policy-1 ended FAILED, exit code 1: no share")
    assert found is not None
    assert found[0] == "SuccessorFails"
    assert "its successor failed: policy-1 ended FAILED, exit code 1: no share" in found[1]
    assert blocked(of, [member(0, 5000)], NOW, "failed") is None, "there is time"


def test_a_rollout_pool_is_renewed_before_its_budgets_no_longer_fit() -> None:
    stages = {s: {"timeoutSeconds": 100} for s in ("init", "run", "eval")}
    spec = {"replicas": 1, "stages": stages, "allocation": {"timeLimit": "01:00:00"}}
    of = RolloutPool.model_validate({"metadata": {"name": "p"}, "spec": spec, "status": {"startupSeconds": 50}})

    def renewed(ends_in: float) -> bool:
        old = member(0, ends_in, hash=template_hash(of))
        return bool(plan_pool(of, [old], 1, NOW, slurm_known=True).successors)

    assert (renewed(381), renewed(379)) == (False, True)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0, 5e3), st.floats(0, 1e3), st.integers(1, 5))
def test_with_so_many_places_each_can_be_renewed_in_time(
    ends: list[float], lead: float, round_seconds: float, surge: int
) -> None:
    ends = sorted(ends)
    due = due_times(ends, lead, round_seconds, surge)
    places = [float("-inf")] * surge
    for i in sorted(range(len(ends)), key=lambda i: due[i]):
        begun = max(due[i], min(places))
        places[places.index(min(places))] = begun + round_seconds
        assert begun <= ends[i] - lead + 1e-6 * max(1.0, abs(ends[i]))


def test_the_start_up_time_rises_at_once_and_falls_slowly() -> None:
    assert learn_startup(None, None, []) == (None, None)
    assert learn_startup(None, None, [(1.0, 20.0)]) == (20.0, 1.0)
    assert learn_startup(20.0, 1.0, [(1.0, 20.0), (2.0, 60.0)]) == (60.0, 2.0)
    assert learn_startup(60.0, 2.0, [(3.0, 20.0)]) == (40.0, 3.0)
    assert learn_startup(60.0, 2.0, [(2.0, 600.0)]) == (60.0, 2.0), "counted once"


def test_the_told_time_of_a_renewal_is_the_time_at_which_it_happens() -> None:
    members = [member(0, 2000.0), member(1, 3000.0), member(2, None)]
    allocations = [m.allocation for m in members]
    first, second = planned_successors(pool(), allocations)
    assert (first.allocation, second.allocation) == ("policy-0", "policy-1"), "the third has not started"
    assert (first.take_over_at, first.waits_for) == (NOW + 2000 - 300, None)
    assert first.submit_at is not None
    for seconds, due in ((-1.0, False), (1.0, True)):
        now = first.submit_at + seconds
        planned = plan_pool(pool(), members[:2], 2, now, slurm_known=True)
        assert ("policy-0" in [one.of for one in planned.successors]) == due, planned
    drained = evolve(allocations[1], spec=evolve(allocations[1].spec, drain=True))
    assert planned_successors(pool(), [drained]) == []
