"""Conditions of an allocation, from its status and the observed state of its job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollyard.core.clock import as_datetime
from rollyard.kinds.allocation import SUBMITTED, Allocation, AllocationStatus
from rollyard.kinds.base import Condition, ConditionUpdate, Reason, get_condition, set_conditions
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.missing_jobs import MIN_LOOKUPS, Absence, why_not_gone

DRAINING, ENDING = "Draining", "Ending"
"""Types of two conditions: the reason why we drain a job, and the reason why we end a job before its work is done."""
_DRAINS = "; it accepts no new work and ends after its present work"
IN_QUEUE = "InQueue"
"""Type of the condition that tells whether Slurm's queue shows the job."""


@dataclass(frozen=True, slots=True)
class AllocationView:
    """Input of the conditions."""

    allocation: Allocation
    status: AllocationStatus
    """The new status, still with the earlier conditions."""
    ended: str
    """Text about the job's end, for the condition Ready. After the end this condition does not change."""
    engine: Reason | None
    """Reason why the allocation's model server is not ready; None if the server is ready or not connected."""
    why_drained: Reason | None
    """Reason of a drain that no condition shows yet; otherwise None."""
    absence: Absence | None
    """Facts about the missing job; None if Slurm's queue shows the job."""
    now: float


def allocation_conditions(view: AllocationView) -> list[Condition]:
    status, generation = view.status, view.allocation.metadata.generation
    known = get_condition(status.conditions, "Ready")
    if status.is_ended and known is not None and known.reason == "Ended":
        return status.conditions
    return set_conditions(status.conditions, _updates(view), generation=generation, now=as_datetime(view.now))


def why_left(status: AllocationStatus) -> str:
    """Our reason for ending the job, from the conditions; empty if no condition has one."""
    for type in (ENDING, DRAINING):
        if (told := get_condition(status.conditions, type)) is not None:
            return told.message.removesuffix(_DRAINS)
    return ""


def _updates(view: AllocationView) -> Iterator[ConditionUpdate]:
    status, spec = view.status, view.allocation.spec
    yield ConditionUpdate("Ready", status.ready, *_job_state(view))
    if status.job_id is not None and get_condition(status.conditions, SUBMITTED) is not None:  # also for an adopted job
        yield ConditionUpdate(SUBMITTED, True, "Submitted", f"as job {status.job_id}")
    if not status.is_ended and (view.absence is not None or get_condition(status.conditions, IN_QUEUE) is not None):
        if view.absence is not None and view.absence.lookups >= MIN_LOOKUPS:
            yield ConditionUpdate(IN_QUEUE, False, "Missing", why_not_gone(view.absence, view.now))
        else:
            yield ConditionUpdate(IN_QUEUE, True, "Listed")
    draining = get_condition(status.conditions, DRAINING)
    if spec.drain and draining is not None:  # the reason of a drain does not change with later events
        yield ConditionUpdate(DRAINING, True, *draining.why)
    elif view.why_drained is not None:
        word, why = view.why_drained
        yield ConditionUpdate(DRAINING, True, word, f"{why}{_DRAINS}")


def _job_state(view: AllocationView) -> Reason:
    status, job = view.status, f"job {view.status.job_id}"
    if status.is_ended:
        which = f"{job} ended {status.job_state}: " if status.job_id is not None else ""
        return Reason("Ended", f"{which}{view.ended}")
    if status.ready:
        return Reason("Serving", f"{job} on {status.node}")
    if status.job_state == JobState.RUNNING:
        return Reason("Starting", str(view.engine or f"{job} has not connected yet"))
    id = status.job_id or "(not submitted)"
    return Reason("Pending", f"job {id} {status.job_state or ''} {status.reason}".strip())
