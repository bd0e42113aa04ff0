"""Hours of jobs as Rollyard and as Slurm's accounting count them, and why they differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.usage import EndedAllocation, resources, started_at
from rollyard.slurm.cli_driver import JobAccount

HOUR = 3600.0
NEGLIGIBLE_SECONDS = 1.0
"""Slurm rounds its times to seconds."""


class OwnJob(NamedTuple):
    """Job as Rollyard counts it. Times are Unix seconds."""

    id: str
    pool: str
    start: float
    end: float
    is_running: bool
    gpus: int
    cpus: int
    seen_at: float

    @classmethod
    def all(cls, ended: Iterable[EndedAllocation], live: Iterable[Allocation], now: float) -> list[OwnJob]:
        """Return all jobs that have started, each once."""
        found = {}
        for allocation in live:
            status, spec = allocation.status, allocation.spec
            start = started_at(status, now)
            if status.job_id is not None and start is not None and not status.is_ended:
                gpus, cpus = resources(spec.template)
                found[status.job_id] = cls(status.job_id, spec.pool.name, start, now, True, gpus, cpus, now)
        for one in ended:
            if one.job_id and one.started_at is not None:
                times = (one.started_at, one.ended_at, False)
                found[one.job_id] = cls(one.job_id, one.pool, *times, one.gpus, one.cpus, one.seen_at)
        return list(found.values())


class ComparedJob(NamedTuple):
    """Job with the hours of both. Slurm's are None if accounting does not know the job."""

    id: str
    pool: str
    gpu_hours: float
    cpu_hours: float
    slurm_gpu_hours: float | None
    slurm_cpu_hours: float | None
    why: tuple[str, ...]
    """Why the two differ; empty if they do not."""


def compared(
    jobs: Sequence[OwnJob], accounts: Mapping[str, Sequence[JobAccount]], since: float, until: float
) -> list[ComparedJob]:
    """Compare the hours of jobs between two times, those that differ most first."""
    found = [_compared(job, accounts.get(job.id, ()), since, until) for job in jobs]
    return sorted(found, key=lambda job: (not job.why, -_difference(job), job.id))


def _compared(job: OwnJob, runs: Sequence[JobAccount], since: float, until: float) -> ComparedJob:
    seconds = _within(job.start, job.end, since, until)
    own = (seconds * job.gpus / HOUR, seconds * job.cpus / HOUR)
    runs = [run for run in runs if run.end is None or run.end >= job.start]  # Slurm uses the numbers of jobs again
    if not runs:
        return ComparedJob(job.id, job.pool, *own, None, None, ("accounting does not know the job",))
    started = [run for run in runs if run.start is not None]
    theirs = [_within(run.start or 0.0, run.end or until, since, until) for run in started]
    gpu_hours = sum(time * run.gpus for time, run in zip(theirs, started, strict=True)) / HOUR
    cpu_hours = sum(time * run.cpus for time, run in zip(theirs, started, strict=True)) / HOUR
    why = tuple(_reasons(job, (started or runs)[0]))
    if len(started) > 1:
        why += (f"Slurm ran the job {len(started)} times, and Rollyard counts the first",)
    return ComparedJob(job.id, job.pool, *own, gpu_hours, cpu_hours, why)


def _within(start: float, end: float, since: float, until: float) -> float:
    return max(0.0, min(end, until) - max(start, since))


def _reasons(job: OwnJob, account: JobAccount) -> Iterator[str]:
    if account.cpus != job.cpus:
        yield f"Slurm allocated {account.cpus} cores, and the template asks for {job.cpus}"
    if account.gpus != job.gpus:
        yield f"Slurm allocated {account.gpus} GPUs, and the template asks for {job.gpus}"
    if account.start is None:
        yield "the job never started by accounting"
    elif (late := job.start - account.start) and abs(late) > NEGLIGIBLE_SECONDS:
        yield f"our start is {abs(late):.0f} s {'later' if late > 0 else 'earlier'}"
    if account.end is None and not job.is_running:
        yield "accounting does not know of the job's end yet"
    elif account.end is not None and job.is_running:
        yield "the job has ended by accounting, and the server has not seen it"
    elif account.end is not None and (late := job.end - account.end) and abs(late) > NEGLIGIBLE_SECONDS:
        yield f"the end was recorded {abs(late):.0f} s {'later' if late > 0 else 'earlier'}"


def _difference(job: ComparedJob) -> float:
    if job.slurm_gpu_hours is None or job.slurm_cpu_hours is None:
        return float("inf")
    return abs(job.gpu_hours - job.slurm_gpu_hours) + abs(job.cpu_hours - job.slurm_cpu_hours)
