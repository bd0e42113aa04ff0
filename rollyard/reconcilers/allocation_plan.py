"""Plan for one allocation, from the recorded state and a listing of Slurm's queue. Pure.

A first submit requires a listing. If it is unknown whether a submit made a job, another submit requires several complete
listings in a row that lack the job. These rules prevent a second job.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Job, JobListing

SUBMIT_MARGIN_SECONDS = 3.0
"""A listing that begins less than this many seconds after the recorded time of the intent may lack the submitted job."""
MIN_MISSES = 2


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    adopt: Job | None = None
    """The allocation's job as the listing shows it: the recorded job or, if no job is recorded, the job of the
    same owner (`Job.owner`). A job of the same owner is taken too if the queue does not know the recorded id and no
    process has registered with it: sbatch may print a wrong id."""
    submit: bool = False
    """True: write the intent, then submit."""
    cancel: tuple[str, ...] = ()
    gone: bool = False
    """True: complete listings no longer show the job."""
    remove: bool = False
    """True: the allocation has no job left, so the allocation's finalizer may be removed."""
    wait: bool = False
    """True: a later listing decides."""


def plan_allocation(allocation: Allocation, owner: str, listing: JobListing | None, missed: int) -> AllocationPlan:
    """Plan for one allocation. `missed`: number of complete listings in a row without the allocation's job."""
    status, deleting = allocation.status, allocation.metadata.deletion_timestamp is not None
    if status.is_ended:
        # Jobs that appear after the allocation's end was recorded. Such jobs get no work, so cancel them.
        left = tuple(c.id for c in listing.by_owner(owner) if not c.state.ended) if listing else ()
        return AllocationPlan(remove=deleting and not left, cancel=left)
    if status.intents == 0 and deleting:
        return AllocationPlan(remove=True)
    if listing is None:
        return AllocationPlan(wait=True)
    if status.intents == 0:
        return AllocationPlan(submit=True)
    copies = sorted(listing.by_owner(owner), key=lambda j: (j.state.ended, _job_number(j.id)))
    recorded = listing.jobs.get(status.job_id) if status.job_id else None
    unknown = status.job_id is None or (status.job_state is None and status.binding is None)
    job = recorded or (next(iter(copies), None) if unknown else None)
    if job is None:
        return _without_job(allocation, listing, missed, deleting)
    strays = tuple(c.id for c in copies if c.id != job.id and not c.state.ended)
    over = job.state.ended or job.state is JobState.COMPLETING
    if not over and (deleting or _is_second_run(allocation, job)):
        return AllocationPlan(adopt=job, cancel=(job.id, *strays))
    return AllocationPlan(adopt=job, cancel=strays)


def _is_second_run(allocation: Allocation, job: Job) -> bool:
    """Whether a requeued job runs again after a process of an earlier run was bound to the allocation. The earlier
    run's work has gone to other jobs."""
    binding = allocation.status.binding
    return binding is not None and binding.job_id == job.id and job.restart_count > binding.restart_count


def _job_number(id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in id.split("_") if part.isdecimal())


def _without_job(allocation: Allocation, listing: JobListing, missed: int, deleting: bool) -> AllocationPlan:
    """Plan if a listing lacks our job. A single listing may be wrong, so MIN_MISSES listings in a row are needed."""
    status = allocation.status
    assert status.intended_at is not None
    early = status.job_id is None and listing.taken_at < status.intended_at.timestamp() + SUBMIT_MARGIN_SECONDS
    if early or missed < MIN_MISSES:
        return AllocationPlan(wait=True)
    if status.job_id is not None:
        return AllocationPlan(gone=True)
    return AllocationPlan(remove=True) if deleting else AllocationPlan(submit=True)
