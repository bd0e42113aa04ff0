"""Hours of jobs as Rollyard and as Slurm's accounting count them, and why they differ. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollyard.kinds.usage import (
    HoursBesideSlurm,
    HoursDifference,
    JobBesideSlurm,
    JobTime,
    PoolBesideSlurm,
    SlurmUsageView,
)
from rollyard.slurm.base import JobAccount
from rollyard.slurm.batch_script import JOB_PREFIX
from rollyard.slurm.job_step_driver import STEP_PREFIX

HOUR = 3600.0
NEGLIGIBLE_SECONDS = 1.0
"""Slurm rounds its times to seconds."""
Difference = Literal["Resources", "Start", "End", "Reruns"]
MESSAGES: dict[Difference, str] = {
    "Resources": "Slurm allocated other numbers of GPUs or cores than the templates ask for",
    "Start": "the starts of jobs were recorded at different times",
    "End": "the ends of jobs were recorded at different times",
    "Reruns": "Slurm ran requeued jobs again, and Rollyard counts their first runs",
}


@dataclass(frozen=True, slots=True)
class _Hours:
    gpu: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: _Hours) -> _Hours:
        return _Hours(self.gpu + other.gpu, self.cpu + other.cpu)


@dataclass(frozen=True, slots=True)
class _Compared:
    job: JobTime
    own: _Hours
    slurm: _Hours | None
    """None if accounting does not know the job."""
    parts: Mapping[Difference, _Hours]
    """Cause -> its part of Slurm's hours less ours."""
    why: tuple[str, ...]

    @property
    def difference(self) -> float:
        if self.slurm is None:
            return float("inf")
        return abs(self.slurm.gpu - self.own.gpu) + abs(self.slurm.cpu - self.own.cpu)

    def view(self) -> JobBesideSlurm:
        job, slurm = self.job, self.slurm
        return JobBesideSlurm(
            id=job.id,
            allocation=job.allocation,
            namespace=job.namespace,
            pool_kind=job.pool_kind,
            pool=job.pool,
            gpu_hours=self.own.gpu,
            cpu_hours=self.own.cpu,
            slurm_gpu_hours=slurm.gpu if slurm is not None else None,
            slurm_cpu_hours=slurm.cpu if slurm is not None else None,
            why=list(self.why),
        )


def compare(
    jobs: Sequence[JobTime], accounts: Mapping[str, Sequence[JobAccount]], since: float, until: float, limit: int
) -> SlurmUsageView:
    """Compare the hours of jobs between two times. `limit`: most jobs to list."""
    namesakes = defaultdict[str, list[JobTime]](list)
    for job in jobs:
        namesakes[job.id].append(job)
    known = {*accounts, *(id.partition("_")[0] for id in accounts)}  # an array's number is a job's too
    found = [
        _compare(job, _runs(job, namesakes[job.id], accounts.get(job.id, ())), job.id in known, since, until)
        for job in jobs
    ]
    found.sort(key=lambda one: (not one.why, -one.difference, one.job.id))
    return SlurmUsageView(
        since=since,
        until=until,
        missing=None,
        total=HoursBesideSlurm(**_sums(found)),
        rows=_rows(found),
        differences=_differences(found),
        jobs=[one.view() for one in found[:limit]],
    )


def without_slurm(jobs: Sequence[JobTime], since: float, until: float, why: str) -> SlurmUsageView:
    """Return the hours of jobs as Rollyard counts them alone. `why`: the reason, in one sentence."""
    found = [_Compared(job, _own_hours(job, since, until), _Hours(), {}, ()) for job in jobs]
    unknown = {"slurm_gpu_hours": None, "slurm_cpu_hours": None}
    total = HoursBesideSlurm(**_sums(found)).model_copy(update=unknown)
    rows = [row.model_copy(update=unknown) for row in _rows(found)]
    return SlurmUsageView(since=since, until=until, missing=why, total=total, rows=rows, differences=[], jobs=[])


def _rows(found: Sequence[_Compared]) -> list[PoolBesideSlurm]:
    pools = defaultdict[tuple[str, Literal["InferencePool", "RolloutPool"], str], list[_Compared]](list)
    for one in found:
        pools[one.job.namespace, one.job.pool_kind, one.job.pool].append(one)
    return [
        PoolBesideSlurm(namespace=namespace, pool_kind=kind, pool=pool, **_sums(pools[namespace, kind, pool]))
        for namespace, kind, pool in sorted(pools)
    ]


def _sums(found: Sequence[_Compared]) -> dict[str, float]:
    known = [one for one in found if one.slurm is not None]
    own, slurm = sum((one.own for one in known), _Hours()), sum((one.slurm or _Hours() for one in known), _Hours())
    unknown = [one for one in found if one.slurm is None]
    left_out = sum((one.own for one in unknown), _Hours())
    return {
        "jobs": len(known),
        "gpu_hours": own.gpu,
        "cpu_hours": own.cpu,
        "slurm_gpu_hours": slurm.gpu,
        "slurm_cpu_hours": slurm.cpu,
        "differing": sum(bool(one.why) for one in known),
        "unknown_jobs": len(unknown),
        "unknown_gpu_hours": left_out.gpu,
        "unknown_cpu_hours": left_out.cpu,
    }


def _differences(found: Sequence[_Compared]) -> list[HoursDifference]:
    sums = []
    for cause, message in MESSAGES.items():
        parts = [one.parts[cause] for one in found if cause in one.parts]
        hours = sum(parts, _Hours())
        if parts:
            told = {"cause": cause, "message": message, "jobs": len(parts)}
            sums.append(HoursDifference(**told, gpu_hours=hours.gpu, cpu_hours=hours.cpu))
    return sorted(sums, key=lambda one: -abs(one.gpu_hours) - abs(one.cpu_hours))


def _is_named(job: JobTime, name: str) -> bool:
    """Whether Slurm's name of a job fits. A job of an array has a name without the allocation's number."""
    mine = f"{JOB_PREFIX}{job.allocation}"
    return name == mine or mine.rpartition("-")[0] == name


def _runs(job: JobTime, namesakes: Sequence[JobTime], accounts: Sequence[JobAccount]) -> list[JobAccount]:
    """Return Slurm's runs of a job, oldest first, among those of all jobs with its number."""

    def distance(one: JobTime, run: JobAccount) -> float:
        return abs((run.submitted or 0.0) - (one.start if one.submitted is None else one.submitted))

    runs = [
        run
        for run in accounts
        if _is_named(job, run.name)
        and (run.end is None or run.end >= job.start)
        and min((one for one in namesakes if _is_named(one, run.name)), key=lambda one: distance(one, run)) == job
    ]
    runs.sort(key=lambda run: run.submitted or 0.0)
    return runs if runs and (runs[0].submitted or 0.0) <= job.end + NEGLIGIBLE_SECONDS else []


def _compare(job: JobTime, runs: Sequence[JobAccount], is_known: bool, since: float, until: float) -> _Compared:
    """`is_known`: accounting has a job with this number."""
    own = _own_hours(job, since, until)
    if not runs:
        why = "accounting does not know the job"
        if is_known:
            why += f": it never was in this Slurm, where job {job.id} is another one"
        elif job.id.startswith(STEP_PREFIX):
            why += ": it is a step of the job in `spec.allocation.within`, and counts there"
        return _Compared(job, own, None, {}, (why,))
    started = [run for run in runs if run.start is not None]
    slurm = sum((_run_hours(run, since, until) for run in started), _Hours())
    parts = {cause: part for cause, part in _parts(job, started, since, until) if part != _Hours()}
    told = tuple(_reasons(job, (started or runs)[0]))
    if len(started) > 1:
        told += (f"Slurm ran the job {len(started)} times, and Rollyard counts the first",)
    return _Compared(job, own, slurm, parts, told)


def _parts(
    job: JobTime, started: Sequence[JobAccount], since: float, until: float
) -> Iterator[tuple[Difference, _Hours]]:
    """Yield the parts of Slurm's hours less ours."""
    ours = _within(job.start, job.end, since, until)
    if not started:
        yield "Start", _held(job, -ours)
        return
    first, *more = started
    start, end = first.start or 0.0, until if first.end is None else first.end
    later, theirs = _within(start, job.end, since, until), _within(start, end, since, until)
    yield "Start", _held(job, later - ours)
    yield "End", _held(job, theirs - later)
    yield "Resources", _Hours(theirs * (first.gpus - job.gpus) / HOUR, theirs * (first.cpus - job.cpus) / HOUR)
    yield "Reruns", sum((_run_hours(run, since, until) for run in more), _Hours())


def _own_hours(job: JobTime, since: float, until: float) -> _Hours:
    return _held(job, _within(job.start, job.end, since, until))


def _run_hours(run: JobAccount, since: float, until: float) -> _Hours:
    return _held(run, _within(run.start or 0.0, until if run.end is None else run.end, since, until))


def _held(holder: JobTime | JobAccount, seconds: float) -> _Hours:
    return _Hours(seconds * holder.gpus / HOUR, seconds * holder.cpus / HOUR)


def _within(start: float, end: float, since: float, until: float) -> float:
    return max(0.0, min(end, until) - max(start, since))


def _reasons(job: JobTime, account: JobAccount) -> Iterator[str]:
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
