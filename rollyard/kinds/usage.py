"""Ended allocations, and what pools have used: hours of GPUs and cores, tokens, rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from rollyard.kinds.allocation import Allocation, AllocationStatus, AllocationTemplate
from rollyard.kinds.base import WireModel

USAGE_BY = ("pool", "namespace", "week")


class EndedAllocation(WireModel):
    """One allocation whose job has ended. It is kept after the object is deleted. Times are Unix seconds."""

    namespace: str
    name: str
    uid: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str
    job_id: str
    node: str
    """Node or list of nodes, as Slurm writes it; empty if the job never started."""
    gpus: int
    """GPUs of the whole job, as its template asks for them."""
    cpus: int
    """Cores of the whole job, as its template asks for them."""
    submitted_at: float | None
    started_at: float | None
    """Start of the job; null if the job never started."""
    ready_at: float | None
    """Time at which the allocation was ready for the first time; null if it never was."""
    ended_at: float
    seen_at: float
    """Time at which the server saw the end."""
    job_state: str
    exit_code: int | None = None
    reason: str
    """Cause of the end, in one sentence."""
    successor_of: str | None = None

    @classmethod
    def of(cls, allocation: Allocation, status: AllocationStatus, seen_at: float) -> Self:
        """Return the entry of an allocation whose job has just ended. `status`: the status after the end."""
        ended_at = _seconds(status.end_time) or seen_at
        gpus, cpus = resources(allocation.spec.template)
        spec, meta = allocation.spec, allocation.metadata
        return cls(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            pool_kind=spec.pool.kind,
            pool=spec.pool.name,
            job_id=status.job_id or "",
            node=status.node,
            gpus=gpus,
            cpus=cpus,
            submitted_at=_seconds(status.intended_at),
            started_at=started_at(status, ended_at),
            ready_at=_seconds(status.ready_at),
            ended_at=ended_at,
            seen_at=seen_at,
            job_state=status.job_state or "",
            exit_code=status.exit_code,
            reason=status.reason,
            successor_of=spec.successor_of,
        )


@dataclass(frozen=True, slots=True)
class JobTime:
    """Time in which a job ran, in Unix seconds, and what it held."""

    id: str
    """Slurm's number. After a new Slurm, or a move to another one, two jobs may have the same."""
    allocation: str
    namespace: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str
    submitted: float | None
    start: float
    end: float
    is_running: bool
    gpus: int
    cpus: int


def job_times(ended: Iterable[EndedAllocation], live: Iterable[Allocation], now: float) -> Iterator[JobTime]:
    """Yield the times of all jobs that have started. An allocation that is in both lists counts once."""
    seen = set[str]()
    for one in ended:
        seen.add(one.uid)
        if one.started_at is not None:
            where = (one.job_id, one.name, one.namespace, one.pool_kind, one.pool)
            yield JobTime(*where, one.submitted_at, one.started_at, one.ended_at, False, one.gpus, one.cpus)
    for allocation in live:
        status, pool, meta = allocation.status, allocation.spec.pool, allocation.metadata
        start = started_at(status, now)
        if start is not None and meta.uid not in seen and not status.is_ended:
            where = (status.job_id or "", meta.name, meta.namespace, pool.kind, pool.name)
            yield JobTime(*where, _seconds(status.intended_at), start, now, True, *resources(allocation.spec.template))


def resources(template: AllocationTemplate) -> tuple[int, int]:
    """Return the GPUs and the cores of one whole job."""
    return template.gpus * template.nodes, template.cpus_per_task * template.nodes


def started_at(status: AllocationStatus, until: float) -> float | None:
    """Return the start of a job that has started by `until`; None if it has not. Slurm's start time of a pending job is an
    estimate, and a job that was cancelled while it waited seems to start at its end, but has no node."""
    start = _seconds(status.start_time)
    return start if start is not None and status.node and start <= until else None


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None


class UsageTotals(WireModel):
    """Sums over a time. Hours are those of running jobs, from the start of a job to its end."""

    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    prompt_tokens: int = 0
    """Tokens in the prompts of all turns. A prompt has the tokens of the earlier turns again."""
    sampled_tokens: int = 0
    rollouts: int = 0
    """Rollouts that ended, without checks."""
    scored: int = 0
    """Those that ended with a reward."""
    scored_per_gpu_hour: float | None = None
    """Null without GPU-hours."""
    scored_per_cpu_hour: float | None = None
    """Null without CPU-hours."""


class UsageRow(UsageTotals):
    """Usage of one pool, namespace or week. The fields by which the usage is not grouped are null."""

    namespace: str | None = None
    pool_kind: str | None = None
    pool: str | None = None
    week: str | None = None
    """Week of ISO 8601 in UTC, such as 2026-W49."""


class UsageView(WireModel):
    """Answer of `GET /v1/usage`."""

    since: float
    """Unix seconds, a whole hour."""
    until: float
    by: str
    rows: list[UsageRow]
    total: UsageTotals


class HoursBesideSlurm(WireModel):
    """Hours of the same jobs as Rollyard and as Slurm's accounting count them. Jobs that accounting does not know are in
    neither sum. Slurm's hours are null if they are not known."""

    jobs: int = 0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    slurm_gpu_hours: float | None = None
    slurm_cpu_hours: float | None = None
    differing: int = 0
    """Those of `jobs` for which the two differ by more than Slurm's rounding to seconds."""
    unknown_jobs: int = 0
    """Jobs that accounting does not know."""
    unknown_gpu_hours: float = 0.0
    unknown_cpu_hours: float = 0.0


class PoolBesideSlurm(HoursBesideSlurm):
    namespace: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str


class HoursDifference(WireModel):
    """Part of the difference that has one cause. All parts together are Slurm's hours less Rollyard's."""

    cause: Literal["Resources", "Start", "End", "Reruns"]
    message: str
    """The cause in words."""
    jobs: int
    gpu_hours: float
    """Slurm's less Rollyard's."""
    cpu_hours: float


class JobBesideSlurm(WireModel):
    """Job with the hours of both."""

    id: str
    allocation: str
    namespace: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str
    gpu_hours: float
    cpu_hours: float
    slurm_gpu_hours: float | None
    """Null if accounting does not know the job."""
    slurm_cpu_hours: float | None
    why: list[str]
    """Why the two differ; empty if they do not by more than Slurm's rounding to seconds."""


class SlurmUsageView(WireModel):
    """Answer of `GET /v1/usage/slurm`."""

    since: float
    """Unix seconds, a whole hour."""
    until: float
    """Time of the comparison. A running job has its hours until then."""
    missing: str | None
    """Why Slurm's hours are not known, in one sentence; null if they are known. Without them `rows` and `total` have Rollyard's
    hours alone, and the other lists are empty."""
    total: HoursBesideSlurm
    rows: list[PoolBesideSlurm]
    differences: list[HoursDifference]
    """Causes of the difference of `total`, those with the most hours first."""
    jobs: list[JobBesideSlurm]
    """The jobs that differ most first, as many as asked for."""


class AllocationHistory(WireModel):
    """Answer of `GET /v1/allocations/history`, newest first."""

    allocations: list[EndedAllocation]
