"""Reasons why a pool has no endpoint or no node agent for a rollout. Pure. `waiting_reason` has the order of the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rollyard.core.clock import as_text
from rollyard.kinds.allocation import SUBMITTED, Allocation
from rollyard.kinds.base import Condition, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Sentence of a reason, and the start of the wait. The reason's short name is in `waiting_reason.ROWS`."""

    sentence: str
    since: datetime | float | None = None
    """Start of the wait. If it is None, or earlier than the time at which the rollout was queued, the latter time is
    shown."""


@dataclass(frozen=True, slots=True)
class PoolShortage:
    """A pool that has no endpoint or node agent for a rollout."""

    pool: RolloutPool | InferencePool
    allocations: Sequence[Allocation]
    """Allocations that have not ended and are not being drained or deleted."""
    now: float

    @property
    def name(self) -> str:
        return f"{self.pool.kind} {self.pool.metadata.name}"

    @property
    def short_name(self) -> str:
        return f"{self.pool.SHORT[0]}/{self.pool.metadata.name}"


def slurm_unreachable(shortage: PoolShortage) -> WaitReason | None:
    found = get_condition(shortage.pool.status.conditions, "SlurmReachable")
    if found is None or found.status != "False":
        return None
    return WaitReason(f"{shortage.name} needs an allocation, but {found.message}", found.last_transition_time)


def scaled_to_zero(shortage: PoolShortage) -> WaitReason | None:
    if shortage.pool.spec.replicas == 0:
        return WaitReason(
            f"{shortage.name} has 0 replicas; `rollyard scale {shortage.short_name} --replicas 1` starts one"
        )
    limited = get_condition(shortage.pool.status.conditions, "ScalingLimited")
    if shortage.pool.status.replicas.desired or shortage.allocations or limited is None or limited.status != "True":
        return None
    return WaitReason(f"{shortage.name} has no allocation: {limited.message}", limited.last_transition_time)


def submit_unanswered(shortage: PoolShortage) -> WaitReason | None:
    for a in shortage.allocations:
        condition = get_condition(a.status.conditions, SUBMITTED)
        if a.status.job_id is None and condition is not None and condition.status != "True":
            sentence = f"{shortage.name} needs an allocation, but for {a.metadata.name} {condition.message}"
            return WaitReason(sentence, condition.last_transition_time)
    return None


def pending(shortage: PoolShortage) -> WaitReason | None:
    for a in shortage.allocations:
        if a.status.job_state == JobState.PENDING:
            start = a.status.start_time
            expected = f"; Slurm expects it to start at {as_text(start.timestamp())}" if start is not None else ""
            sentence = (
                f"{shortage.name} waits for job {a.status.job_id} of allocation {a.metadata.name}, which is pending: "
                f"{a.status.waiting_reason}{expected}"
            )
            return WaitReason(sentence, a.status.intended_at)
    return None


def suspended_by_slurm(shortage: PoolShortage) -> WaitReason | None:
    for a in shortage.allocations:
        if a.status.job_state == JobState.SUSPENDED:
            return WaitReason(
                f"{shortage.name} waits for job {a.status.job_id} of allocation {a.metadata.name}: Slurm suspended it"
            )
    return None


def failing(shortage: PoolShortage) -> WaitReason | None:
    ready = _not_ready(shortage.pool)
    if ready is None or not shortage.pool.status.failures:
        return None
    return WaitReason(f"{shortage.name} is not ready: {ready.why}", ready.last_transition_time)


def starting(shortage: PoolShortage) -> WaitReason | None:
    for a in shortage.allocations:
        if a.status.job_state == JobState.RUNNING:
            job = f"job {a.status.job_id} of allocation {a.metadata.name} runs on {a.status.node}"
            if not isinstance(shortage.pool, RolloutPool):
                return WaitReason(f"{shortage.name} is starting: {job}, and {_engine_reason(a)}", a.status.start_time)
            if a.status.ready_at is None:
                return WaitReason(
                    f"{shortage.name} is starting: {job}, but its node agent has not connected yet", a.status.start_time
                )
            return WaitReason(f"{shortage.name} has no node agent: {job}, but its node agent has lost its connection")
    return None


def _engine_reason(allocation: Allocation) -> str:
    condition = get_condition(allocation.status.conditions, "Ready")
    how = (
        f": {condition.message}"
        if condition is not None and condition.reason == "Starting" and condition.message
        else ""
    )
    return f"its model server accepts no rollouts yet{how}"


def submitting(shortage: PoolShortage) -> WaitReason | None:
    if not shortage.allocations:
        return None
    made = shortage.allocations[0].metadata
    return WaitReason(f"{shortage.name} is about to submit allocation {made.name}", made.creation_timestamp)


def not_serving_yet(shortage: PoolShortage) -> WaitReason | None:
    ready = _not_ready(shortage.pool)
    if ready is not None:
        return WaitReason(f"{shortage.name} is not ready: {ready.why}", ready.last_transition_time)
    what = "node agent" if isinstance(shortage.pool, RolloutPool) else "model server"
    return WaitReason(f"{shortage.name} has no {what} yet; for details: `rollyard describe {shortage.short_name}`")


def active(allocations: Sequence[Allocation]) -> list[Allocation]:
    return [
        a for a in allocations if not (a.status.is_ended or a.spec.drain or a.metadata.deletion_timestamp is not None)
    ]


def _not_ready(pool: RolloutPool | InferencePool) -> Condition | None:
    return condition_with_status(pool.status, "Ready", "False")


def condition_with_status(status: PoolStatus, type: str, word: str) -> Condition | None:
    found = get_condition(status.conditions, type)
    return found if found is not None and found.status == word else None
