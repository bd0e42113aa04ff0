"""Hours of jobs as Rollyard and as Slurm's accounting count them, and why they differ. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.usage import EndedAllocation, resources, started_at
from rollyard.slurm.batch_script import JOB_PREFIX
from rollyard.slurm.cli_driver import JobAccount

HOUR = 3600.0
NEGLIGIBLE_SECONDS = 1.0
"""Slurm rounds its times to seconds."""


class OwnJob(NamedTuple):
    """Job as Rollyard counts it. Times are Unix seconds."""

    id: str
    """Slurm's number. After a new Slurm, or a move to another one, two jobs may have the same."""
    allocation: str
    pool: str
    submitted: float | None
    start: float
    end: float
    is_running: bool
    gpus: int
    cpus: int

    @classmethod
    def all(cls, ended: Iterable[EndedAllocation], live: Iterable[Allocation], now: float) -> list[OwnJob]:
        """Return all jobs that have started, each once."""
        found = {}
        for allocation in live:
            status, spec, meta = allocation.status, allocation.spec, allocation.metadata
            start = started_at(status, now)
            if status.job_id is not None and start is not None and not status.is_ended:
                submitted = status.intended_at.timestamp() if status.intended_at is not None else None
                whose = (status.job_id, meta.name, spec.pool.name)
                found[meta.uid] = cls(*whose, submitted, start, now, True, *resources(spec.template))
        for one in ended:
            if one.job_id and one.started_at is not None:
                times = (one.submitted_at, one.started_at, one.ended_at)
                found[one.uid] = cls(one.job_id, one.name, one.pool, *times, False, one.gpus, one.cpus)
        return list(found.values())

    def is_named(self, name: str) -> bool:
        """Whether Slurm's name of a job fits. A job of an array has a name without the allocation's number."""
        mine = f"{JOB_PREFIX}{self.allocation}"
        return name == mine or mine.rpartition("-")[0] == name


class ComparedJob(NamedTuple):
    """Job with the hours of both. Slurm's are None if accounting does not know the job."""

    id: str
    allocation: str
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
    namesakes = defaultdict[str, list[OwnJob]](list)
    for job in jobs:
        namesakes[job.id].append(job)
    found = [
        _compared(job, _runs(job, namesakes[job.id], accounts.get(job.id, ())), job.id in accounts, since, until)
        for job in jobs
    ]
    return sorted(found, key=lambda job: (not job.why, -_difference(job), job.id))


def _runs(job: OwnJob, namesakes: Sequence[OwnJob], accounts: Sequence[JobAccount]) -> list[JobAccount]:
    """Return Slurm's runs of a job, oldest first, among those of all jobs with its number."""

    def distance(one: OwnJob, run: JobAccount) -> float:
        return abs((run.submitted or 0.0) - (one.start if one.submitted is None else one.submitted))

    runs = [
        run
        for run in accounts
        if job.is_named(run.name)
        and (run.end is None or run.end >= job.start)
        and min((one for one in namesakes if one.is_named(run.name)), key=lambda one: distance(one, run)) == job
    ]
    runs.sort(key=lambda run: run.submitted or 0.0)
    return runs if runs and (runs[0].submitted or 0.0) <= job.end + NEGLIGIBLE_SECONDS else []


def _compared(job: OwnJob, runs: Sequence[JobAccount], is_known: bool, since: float, until: float) -> ComparedJob:
    """`is_known`: accounting has a job with this number."""
    whose = (job.id, job.allocation, job.pool)
    seconds = _within(job.start, job.end, since, until)
    own = (seconds * job.gpus / HOUR, seconds * job.cpus / HOUR)
    if not runs:
        other = f"it never was in this Slurm, where job {job.id} is another one"
        why = other if is_known else "accounting does not know the job"
        return ComparedJob(*whose, *own, None, None, (why,))
    started = [run for run in runs if run.start is not None]
    theirs = [_within(run.start or 0.0, run.end or until, since, until) for run in started]
    gpu_hours = sum(time * run.gpus for time, run in zip(theirs, started, strict=True)) / HOUR
    cpu_hours = sum(time * run.cpus for time, run in zip(theirs, started, strict=True)) / HOUR
    told = tuple(_reasons(job, (started or runs)[0]))
    if len(started) > 1:
        told += (f"Slurm ran the job {len(started)} times, and Rollyard counts the first",)
    return ComparedJob(*whose, *own, gpu_hours, cpu_hours, told)


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
