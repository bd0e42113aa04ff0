"""Conditions of a pool, row by row, and the events about their changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.core.clock import as_text
from rollyard.kinds.base import Condition, ConditionUpdate, Reason, evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import SPARE_SECONDS, RolloutPool
from rollyard.reconcilers.autoscaler import ScaleDecision
from rollyard.reconcilers.conditions import (
    CRASH_LOOP,
    SHORT_WAIT_SECONDS,
    SUBMIT_ANSWER_SECONDS,
    PoolView,
    changes,
    pool_conditions,
    ready,
    renewal_blocked,
    replicas,
    updated,
)
from rollyard.reconcilers.failure_backoff import EndCounts
from rollyard.reconcilers.job_listings import QueueAccess
from rollyard.reconcilers.plan import Member, template_hash
from rollyard.reconcilers.pool_observation import PoolObservation
from tests.support import make

NOW = 1_700_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def engines(**spec: Any) -> InferencePool:
    return make.inference_pool("p", metadata={"generation": 2}, **({"replicas": 2} | spec))


def agents(**spec: Any) -> RolloutPool:
    stages = {stage: {"timeoutSeconds": 40} for stage in ("init", "run", "eval")}
    given = {"inference": {"policy": "p"}, "stages": stages, "allocation": {"timeLimit": "00:10:00"}}
    return make.rollout_pool("p", **(given | spec))


def one(index: int, *, serving: bool = False, of: str = "new", **more: Any) -> Member:
    """`of`: the template; times are seconds from now."""
    spec = {name: more.pop(name) for name in ("drain", "successorOf") if name in more}
    status: dict[str, Any] = {"intents": 1, "jobId": str(index + 10), "node": "n1"} | more
    status |= {name: at(status[name]) for name in ("endTime", "readyAt", "intendedAt", "startTime") if name in status}
    status.setdefault("jobState", "RUNNING")
    spec["template_hash"] = of
    status["ready"] = serving
    allocation = make.allocation(f"p-{index}", pool="InferencePool", created=at(-500), spec=spec, **status)
    return Member(allocation, serving)


def view(
    *members: Member, pool: Pool | None = None, desired: int = 2, ends: EndCounts | None = None, **look: Any
) -> PoolView:
    pool = pool or engines()
    hash = template_hash(pool)
    named = [
        Member(
            evolve(
                m.allocation,
                spec=evolve(
                    m.allocation.spec, template_hash=hash if m.allocation.spec.template_hash == "new" else "old"
                ),
            ),
            m.ready,
        )
        for m in members
    ]
    ends = ends or EndCounts()
    counted = EndCounts(
        hash,
        ends.failures,
        ends.last_failure,
        ends.interruptions,
        ends.last_interruption,
        ends.failing,
        ends.backoff_cap,
    )
    seen = PoolObservation(named, [], {}, look.pop("problem", None), **look)
    return PoolView(pool, seen, ScaleDecision(desired, "as declared"), counted, QueueAccess(True), NOW)


def failing(times: int) -> EndCounts:
    return EndCounts(failures=times, last_failure=NOW - 100, failing=True)


FAILED = {"jobState": "FAILED", "exitCode": 3, "endTime": -100, "reason": "ModelMissing: /nowhere is not a folder"}


def said(fact: Any) -> tuple[bool, str]:
    return fact.status, fact.reason


# what serves


def test_no_more_are_ready_than_are_desired() -> None:
    found = view(one(0, serving=True), one(1, serving=True), one(2, serving=True))
    assert (replicas(found).ready, replicas(found).updated) == (2, 2)
    assert (ready(found).status, ready(found).message) == (True, "2 of 2 allocations ready")


def test_an_engine_that_drains_says_nothing_about_a_pool_whose_desired_number_serves() -> None:
    """Ready flapped at each renewal: `Loading: 1 of 3 engines: Draining`."""
    serving = [one(1, serving=True), one(2, serving=True)]
    for gone in (one(0, drain=True), one(0, serving=True, drain=True), one(3, successorOf="p-1")):
        found = view(*serving, gone, why_not_ready=Reason("Loading", "1 of 3 engines: Draining"))
        assert said(ready(found)) == (True, "AllReady")
        assert replicas(found).ready == 2


def test_old_ones_serve_while_a_change_fails_and_the_change_is_told_apart() -> None:
    old = [one(0, serving=True, of="old"), one(1, serving=True, of="old")]
    for times in range(1, CRASH_LOOP + 1):
        found = view(*old, one(2, **FAILED), ends=failing(times))
        assert said(ready(found)) == (True, "AllReady")
        fact = updated(found)
        assert said(fact) == (False, "CrashLoop" if times >= CRASH_LOOP else "AllocationFailed")
        assert "p-2 ended FAILED: ModelMissing: /nowhere is not a folder" in fact.message
        assert fact.message.startswith("0 of 2 allocations are up to date and ready; failed")
    assert replicas(view(*old)).updated == 0


def test_a_change_is_through_when_nothing_old_counts_any_more() -> None:
    new = [one(2, serving=True), one(3, serving=True)]
    assert said(updated(view(*new))) == (True, "Updated")
    assert said(updated(view(*new, one(0, serving=True, of="old", drain=True)))) == (True, "Updated")
    assert said(updated(view(new[0], one(1, serving=True, of="old")))) == (False, "Updating")
    assert said(updated(view(new[0]))) == (False, "Updating")


def test_a_change_that_went_through_stays_so_when_a_node_is_lost() -> None:
    pool = engines()
    before = Condition(type="Updated", status="True", last_transition_time=at(-50), reason="Updated")
    status = evolve(pool.status, template_hash=template_hash(pool), conditions=[before])
    through = evolve(pool, status=status)
    one_left = [one(2, serving=True), one(3, jobState="NODE_FAIL", endTime=-5)]
    assert said(updated(view(*one_left, pool=through))) == (True, "Updated")
    assert not ready(view(*one_left, pool=through)).status
    changed = evolve(status, template_hash="another")
    assert not updated(view(*one_left, pool=evolve(pool, status=changed))).status


# what waits now, before what failed before


def test_slurms_present_reason_stands_before_an_old_failure() -> None:
    waits = one(3, jobState="PENDING", reason="AssocMaxJobsLimit", intendedAt=-1)
    fact = ready(view(one(2, **FAILED), waits, ends=failing(5)))
    assert said(fact) == (False, "WaitingForSlurm")
    assert fact.message.startswith(
        "0 of 2 allocations ready; 1 of 1 jobs pending: AssocMaxJobsLimit (the account allows"
    )
    assert "before that: failed 5 times in a row; the last: p-2 ended FAILED" in fact.message


def test_a_job_that_waits_for_a_moment_does_not_make_a_crash_loop_flap() -> None:
    def reason(of: str, seconds: float) -> str:
        waits = one(3, jobState="PENDING", reason=of, intendedAt=-seconds)
        return ready(view(one(2, **FAILED), waits, ends=failing(5))).reason

    assert [reason(of, 1) for of in ("", "None", "Priority", "Resources")] == ["CrashLoop"] * 4
    assert reason("Resources", SHORT_WAIT_SECONDS + 1) == "WaitingForSlurm"
    assert reason("ReqNodeNotAvail, UnavailableNodes:n[1-4]", 1) == "WaitingForSlurm"
    assert ready(view(one(2, **FAILED), one(3), ends=failing(5))).reason == "CrashLoop", "it starts, once more"


def test_a_start_that_slurm_has_just_heard_of_is_no_wait_for_slurm() -> None:
    fact = ready(view(one(0, jobState="PENDING", intendedAt=-1), one(1, jobState="PENDING", intendedAt=-1)))
    assert said(fact) == (False, "WaitingForAllocations")
    assert "2 of 2 jobs pending: None (Slurm has not considered it yet)" in fact.message
    assert ready(view(one(0, jobState="PENDING", reason="Resources", intendedAt=-1))).reason == "WaitingForSlurm"


def test_a_submit_that_is_not_answered_is_told_before_an_old_failure() -> None:
    asked = one(3, jobId=None, jobState=None, intendedAt=-SUBMIT_ANSWER_SECONDS - 1)
    fact = ready(view(one(2, **FAILED), asked, ends=failing(5)))
    assert said(fact) == (False, "WaitingForSlurm")
    since = as_text(NOW - SUBMIT_ANSWER_SECONDS - 1)
    assert f"the submit of p-3 is unfinished: Slurm has not answered since {since}" in fact.message
    told = {
        "type": "Submitted",
        "status": "False",
        "reason": "Submitting",
        "lastTransitionTime": at(0),
        "message": "why",
    }
    known = one(3, jobId=None, jobState=None, intendedAt=0, conditions=[told])
    assert (
        "the submit of p-3 is unfinished: why; before that: failed 5 times"
        in ready(view(known, ends=failing(5))).message
    )
    soon = one(3, jobId=None, jobState=None, intendedAt=0)
    assert ready(view(one(2, **FAILED), soon, ends=failing(5))).reason == "CrashLoop"


def test_a_persons_scancel_and_a_lost_node_are_told_as_what_they_are() -> None:
    gone = one(0, jobState="CANCELLED", endTime=-3, reason="cancelled by uid 0", readyAt=-400)
    fact = ready(
        view(gone, one(1, serving=True, readyAt=-400), ends=EndCounts(interruptions=1, last_interruption=NOW - 3))
    )
    assert said(fact) == (False, "WaitingForAllocations")
    assert fact.message == "1 of 2 allocations ready; p-0 ended CANCELLED: cancelled by uid 0; it is replaced"
    often = EndCounts(interruptions=4, last_interruption=NOW - 1)
    fact = ready(view(gone, one(1, serving=True, readyAt=-400), ends=often))
    assert "ended from outside 4 times in a row; the last: p-0 ended CANCELLED" in fact.message
    assert f"the next one is created at {as_text(NOW + 3)}" in fact.message


def test_what_slurm_refuses_is_a_refusal_and_one_by_a_limit_may_pass() -> None:
    old = one(0, serving=True, of="old")
    for kind, words, reason in (
        ("Final", "SubmitRefused: Invalid account; the time limit of this site is 4 h", "SubmitRefused"),
        ("Array", "SubmitRefused: Invalid job array specification", "SubmitRefused"),
        ("Limit", "SubmitRefused: dear user, please read our pages before you submit anythin…", "SubmitLimited"),
    ):
        refused = one(2, jobId=None, jobState="FAILED", endTime=-100, reason=words, refusal=kind)
        fact = updated(view(old, refused, desired=1, ends=failing(1)))
        assert said(fact) == (False, reason)
        assert f"failed: p-2: {words}" in fact.message
        assert ready(view(old, refused, desired=1, ends=failing(1))).status


def test_what_an_engine_says_of_itself_and_what_has_not_dialled_in_is_told() -> None:
    trouble = Reason("Ejected", "default/p-1: no heartbeat for 8 s")
    assert said(ready(view(one(0, serving=True), one(1), why_not_ready=trouble))) == (False, "Ejected")
    fact = ready(view(one(0, serving=True), one(1)))
    assert fact.message == "1 of 2 allocations ready; p-1 has not connected yet (job 11 on n1)"


def test_a_job_that_slurm_has_suspended_serves_nothing_and_is_told() -> None:
    found = view(one(0, serving=True), one(1, serving=True, jobState="SUSPENDED"))
    assert said(ready(found)) == (False, "SuspendedBySlurm")
    assert ready(found).message == "1 of 2 allocations ready; suspended by Slurm: job 11 of p-1"


# the end of the walltime


def test_a_rollout_pool_whose_walltime_covers_no_budgets_says_that_it_places_nothing_and_why_none_follows() -> None:
    """All was Ready to the last second, while 24 rollouts waited for the last 88 s."""
    pool = agents(resume="never")
    need = pool.spec.stages.budget_seconds + SPARE_SECONDS
    waits = one(1, jobState="PENDING", reason="Resources", intendedAt=-60, successorOf="p-0")
    assert ready(view(one(0, serving=True, endTime=need + 1), waits, pool=pool, desired=1)).status
    found = view(one(0, serving=True, endTime=88), waits, pool=pool, desired=1)
    fact = ready(found)
    assert said(fact) == (False, "WalltimeEnds")
    assert f"accepts no rollouts: the walltime ends at {as_text(NOW + 88)}" in fact.message
    assert "and a rollout needs 120 s; " in fact.message
    assert "its successor p-1 waits: Resources (nodes that it could run on are busy)" in fact.message
    blocked = renewal_blocked(found)
    assert blocked is not None
    assert said(blocked) == (True, "Resources")


def test_one_that_can_place_is_enough_and_a_model_server_is_used_to_the_last() -> None:
    ending = one(0, serving=True, endTime=50)
    assert ready(view(ending, one(1, serving=True, endTime=500, successorOf="p-0"), pool=agents(), desired=1)).status
    assert ready(view(ending, desired=1)).status


def test_what_keeps_a_pool_from_being_ready_whatever_its_allocations_are() -> None:
    serving = [one(0, serving=True), one(1, serving=True)]
    assert said(ready(view(*serving, problem=Reason("NoInference", "add it")))) == (False, "NoInference")
    assert said(ready(view(*serving, pool=engines(suspend=True)))) == (False, "Suspended")


# the other conditions, and events

UNREACHABLE = "since 2023-11-14 22:13:20 UTC (squeue: timed out); until it can be read, nothing is created or ended"
HISTORY = [
    Condition(type=type, status="False", last_transition_time=at(-9), reason="Before")
    for type in ("ScalingLimited", "Admitting")
]
FULL, ABSENT = Reason("EndpointsFull", "e1: its cache is full"), Reason("NoEndpoint", "none is in service")


@pytest.mark.parametrize(
    ("type", "change", "expected"),
    [
        ("SlurmReachable", {}, ("True", "Reachable", "")),
        ("SlurmReachable", {"queue": QueueAccess(False)}, None),
        (
            "SlurmReachable",
            {"queue": QueueAccess(False, NOW, "squeue: timed out")},
            ("False", "NoAnswer", f"Slurm's queue is unknown {UNREACHABLE}"),
        ),
        (
            "SlurmReachable",
            {"queue": QueueAccess(False, NOW, "squeue: timed out", is_doubted=True)},
            ("False", "Doubted", f"Slurm's queue is in doubt {UNREACHABLE}"),
        ),
        ("ScalingLimited", {}, None),
        ("ScalingLimited", {"history": HISTORY}, ("False", "DesiredWithinRange", "")),
        (
            "ScalingLimited",
            {"scale": ScaleDecision(2, "as declared", limit=Reason("TooManyReplicas", "why"))},
            ("True", "TooManyReplicas", "why"),
        ),
        ("Admitting", {}, None),
        ("Admitting", {"history": HISTORY}, ("True", "HasRoom", "")),
        ("Admitting", {"why_not_admitting": FULL}, ("False", "EndpointsFull", "e1: its cache is full")),
        ("Admitting", {"why_not_admitting": ABSENT}, None),
        ("Admitting", {"why_not_admitting": ABSENT, "history": HISTORY}, ("False", "NoEndpoint", "none is in service")),
        ("Suspended", {}, ("False", "NotSuspended", "")),
        (
            "Suspended",
            {"pool": engines(suspend=True)},
            ("True", "Suspended", "the pool gives back all its allocations"),
        ),
        (
            "WeightsCurrent",
            {"conditions": [ConditionUpdate("WeightsCurrent", True, "Current", "all")]},
            ("True", "Current", "all"),
        ),
    ],
)
def test_every_other_condition(type: str, change: dict[str, Any], expected: tuple[str, str, str] | None) -> None:
    parts = {name: change.pop(name) for name in ("queue", "scale") if name in change}
    pool, history = change.pop("pool", engines()), change.pop("history", [])
    pool = evolve(pool, status=evolve(pool.status, conditions=history))
    found = {c.type: c for c in pool_conditions(replace(view(pool=pool, **change), **parts))}
    assert {"Ready", "Updated", "Suspended"} <= found.keys()
    assert {c.observed_generation for c in found.values() if c.reason != "Before"} == {2}
    told = found.get(type)
    assert (None if told is None else (told.status, told.reason, told.message)) == expected


def test_a_transition_time_moves_with_the_status_only() -> None:
    pool, serving = engines(), [one(0, serving=True), one(1, serving=True)]
    for seconds, members, since in ((0, serving[:1], 0), (5, [], 0), (9, serving, 9), (12, serving, 9)):
        found = pool_conditions(replace(view(*members, pool=pool), now=NOW + seconds))
        assert next(c for c in found if c.type == "Ready").last_transition_time == at(since)
        pool = evolve(pool, status=evolve(pool.status, conditions=found))


def test_a_change_of_a_reason_is_one_event_and_a_renewal_that_is_blocked_another() -> None:
    def status(**reasons: str) -> Any:
        found = [
            Condition(type=type, status="True" if type == "RenewalBlocked" else "False", last_transition_time=at(0),
                      reason=reason, message="why")
            for type, reason in reasons.items()
        ]  # fmt: skip
        return evolve(engines().status, conditions=found)

    before, failed = status(Ready="Loading", Updated="Updating"), status(Ready="CrashLoop", Updated="CrashLoop")
    assert [*changes(before, before)] == []
    assert [*changes(before, failed)] == [("CrashLoop", "why", True)]
    assert [*changes(failed, before)] == [("Loading", "why", False), ("Updating", "why", False)]
    held = status(Ready="Loading", Updated="Updating", RenewalBlocked="QueueTooLong")
    assert [*changes(before, held)] == [("RenewalBlocked", "QueueTooLong: why", True)]
    assert [*changes(held, held)] == []
