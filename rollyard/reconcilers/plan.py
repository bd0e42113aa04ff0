"""`plan`: what to do about a pool, and about an allocation, from what is declared and what is seen. Pure.

Nothing here acts, waits, or reads a clock. The same view gives the same plan; a plan carried out in part gives a view from
which the rest is planned again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pools import InferencePool, Pool
from rollyard.slurm.base import Job, JobState, Snapshot

HISTORY = 3
"""Ended allocations kept for people to look at."""
BACKOFF_CAP_SECONDS = 60.0
CALM_SECONDS = 60.0
"""All ready for so long: earlier failures are forgotten."""
SUBMIT_MARGIN_SECONDS = 2.0
"""A snapshot begun so long after a submit was decided shows the job, if there is one."""
GONE = "GONE"
"""Job state of our own: in no complete snapshot any more, its end is not known."""
FAILURES = {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "COMPLETED", GONE}
"""Ends that count as the allocation's own failure, unless it was drained; a walltime or a person's scancel does not."""


def ended(allocation: Allocation) -> bool:
    state = allocation.status.job_state
    return state == GONE or (state is not None and JobState(state).ended)


def template_hash(pool: Pool) -> str:
    """Of everything an allocation is made from; another hash means out of date."""
    if isinstance(pool, InferencePool):
        parts = [pool.spec.allocation, pool.spec.model, pool.spec.engine]
    else:
        parts = [pool.spec.allocation, pool.spec.sandbox, pool.spec.stages]
    text = json.dumps([part.model_dump(mode="json") for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# pools


@dataclass(frozen=True, slots=True)
class Member:
    """An allocation of the pool as a plan sees it."""

    allocation: Allocation
    ready: bool
    load: int = 0
    """Rollouts in hand, or live sessions."""

    @property
    def name(self) -> str:
        return self.allocation.metadata.name

    @property
    def index(self) -> int:
        return self.allocation.spec.index

    @property
    def deleting(self) -> bool:
        return self.allocation.metadata.deletion_timestamp is not None

    @property
    def live(self) -> bool:
        return not ended(self.allocation) and not self.deleting

    @property
    def active(self) -> bool:
        """Counts towards the size of the pool."""
        return self.live and not self.allocation.spec.drain

    @property
    def started(self) -> bool:
        return self.allocation.status.job_state not in (None, "PENDING")


@dataclass(frozen=True, slots=True)
class PoolPlan:
    create: tuple[int, ...] = ()
    """Indices of allocations to make."""
    drain: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    next_index: int = 0
    failures: int = 0
    last_failure: float | None = None
    """Unix seconds."""
    again_after: float | None = None
    """Seconds until the back-off is over."""
    removable: bool = False
    """Deleted, and nothing of it is left: the finalizer may go."""


def plan_pool(pool: Pool, members: Sequence[Member], desired: int, now: float, *, slurm_known: bool) -> PoolPlan:
    """What to change about a pool's allocations. While Slurm cannot be read, nothing."""
    failures, last_failure = _failures(pool, members, now)
    newest = max((m.index for m in members), default=-1) + 1
    plan = PoolPlan(next_index=max(pool.status.next_index, newest), failures=failures, last_failure=last_failure)
    if pool.metadata.deletion_timestamp is not None:
        return _tear_down(plan, members)
    if not slurm_known:
        return plan
    fresh_hash = template_hash(pool)
    active = [m for m in members if m.active]
    outdated = [m for m in active if m.allocation.spec.template_hash != fresh_hash]
    # One more than wanted while an outdated one is being replaced, so that capacity never drops.
    target = desired + 1 if outdated and desired else desired
    wait = _backoff(failures, last_failure, now)
    create: tuple[int, ...] = ()
    if len(active) < target and not wait:
        create = tuple(range(plan.next_index, plan.next_index + target - len(active)))
    surplus = _surplus(active, outdated, desired, fresh_hash)
    busy = {m.name for m in surplus if m.started and m.load > 0}
    finished = sorted((m for m in members if ended(m.allocation) and not m.deleting), key=lambda m: -m.index)
    old = [m.name for m in finished if m.allocation.spec.drain] + [
        m.name for m in finished if not m.allocation.spec.drain
    ][HISTORY:]
    return PoolPlan(
        create=create,
        drain=tuple(sorted(busy)),
        delete=tuple(sorted({m.name for m in surplus if m.name not in busy} | set(old))),
        next_index=plan.next_index + len(create),
        failures=failures,
        last_failure=last_failure,
        again_after=wait or None,
    )


def _tear_down(plan: PoolPlan, members: Sequence[Member]) -> PoolPlan:
    """Drain what is busy, delete the rest; removable when no allocation is left."""
    busy = [m.name for m in members if m.live and m.started and m.load > 0]
    undrained = tuple(m.name for m in members if m.name in busy and not m.allocation.spec.drain)
    delete = tuple(m.name for m in members if m.name not in busy and not m.deleting)
    return PoolPlan(drain=undrained, delete=delete, next_index=plan.next_index, removable=not members)


def _surplus(active: list[Member], outdated: list[Member], desired: int, fresh_hash: str) -> list[Member]:
    """Victims: outdated ones once what replaces them is ready, then not started, then idle, then the least loaded."""
    over = len(active) - desired
    if over <= 0:
        return []
    fresh = [m for m in active if m.allocation.spec.template_hash == fresh_hash]
    if outdated and desired and not all(m.ready for m in fresh):
        over = min(over - 1, len(active) - desired)  # the surge stays until it is ready
    order = sorted(
        active,
        key=lambda m: (m.allocation.spec.template_hash == fresh_hash, m.started, m.load, -m.index),
    )
    return order[: max(0, over)]


def _failures(pool: Pool, members: Sequence[Member], now: float) -> tuple[int, float | None]:
    """Failures in a row: those ended after the last one counted are new; a calm pool starts again at none."""
    before = pool.status.last_failure_time.timestamp() if pool.status.last_failure_time else None
    ends = [
        m.allocation.status.end_time.timestamp()
        for m in members
        if m.allocation.status.job_state in FAILURES and not m.allocation.spec.drain and m.allocation.status.end_time
    ]
    new = [end for end in ends if before is None or end > before]
    last = max([*new, *([before] if before is not None else [])], default=None)
    active = [m for m in members if m.active]
    if not new and active and all(m.ready for m in active) and last is not None and now - last > CALM_SECONDS:
        return 0, last
    return pool.status.failures + len(new), last


def _backoff(failures: int, last_failure: float | None, now: float) -> float:
    """Seconds to wait before another allocation is made."""
    if failures == 0 or last_failure is None:
        return 0.0
    full = min(BACKOFF_CAP_SECONDS, 2.0 ** min(failures - 1, 10))  # 2.0 ** 1024 is an OverflowError
    return float(max(0.0, last_failure + full - now))


# allocations


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    adopt: Job | None = None
    """A job that carries our comment, or the one that is recorded, as last seen."""
    submit: bool = False
    """Write the intent, then submit."""
    cancel: tuple[str, ...] = ()
    gone: bool = False
    """Its job is in no complete snapshot any more."""
    remove: bool = False
    """Nothing of it is left: its finalizer may go."""
    wait: bool = field(default=False)
    """Undecided until a later snapshot."""


def plan_allocation(allocation: Allocation, comment: str, snapshot: Snapshot | None, missed: int) -> AllocationPlan:
    """What to do about one allocation; `missed` counts complete snapshots in a row without its job."""
    status, deleting = allocation.status, allocation.metadata.deletion_timestamp is not None
    if ended(allocation):
        # A copy that turned up after the end was concluded: nothing will ever speak for it.
        left = tuple(c.id for c in snapshot.by_owner(comment) if not c.state.ended) if snapshot else ()
        return AllocationPlan(remove=deleting and not left, cancel=left)
    if status.intents == 0:
        return (
            AllocationPlan(remove=True)
            if deleting
            else AllocationPlan(submit=snapshot is not None, wait=snapshot is None)
        )
    if snapshot is None:
        return AllocationPlan(wait=True)
    copies = sorted(snapshot.by_owner(comment), key=lambda j: (j.state.ended, int(j.id) if j.id.isdigit() else 0))
    job = snapshot.jobs.get(status.job_id) if status.job_id else next(iter(copies), None)
    if job is None:
        return _without_job(allocation, snapshot, missed, deleting)
    strays = tuple(c.id for c in copies if c.id != job.id and not c.state.ended)
    if deleting and not job.state.ended:
        return AllocationPlan(adopt=job, cancel=(job.id, *strays))
    return AllocationPlan(adopt=job, cancel=strays)


def _without_job(allocation: Allocation, snapshot: Snapshot, missed: int, deleting: bool) -> AllocationPlan:
    """A complete snapshot, and our job is not in it."""
    status = allocation.status
    if status.job_id is not None:
        return AllocationPlan(gone=True) if missed >= 2 else AllocationPlan(wait=True)
    assert status.intended_at is not None
    if snapshot.taken_at < status.intended_at.timestamp() + SUBMIT_MARGIN_SECONDS:
        return AllocationPlan(wait=True)
    return AllocationPlan(remove=True) if deleting else AllocationPlan(submit=True)
