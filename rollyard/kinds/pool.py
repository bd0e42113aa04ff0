"""Common parts of the two kinds of pool: size, renewal, and the status of their allocations."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rollyard.kinds.allocation import SUBMIT_REFUSED, AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, Autoscaling, GpuLedger, ScalingDecision, ScalingRecord
from rollyard.kinds.base import Condition, KindModel, KindObject, StatusModel

MAX_NAME = 48
"""Longest name of a pool. Its allocations have this name with a suffix."""

GPU_HOURS_SPENT = "GpuHoursSpent"
STANDSTILL = frozenset({"CrashLoop", SUBMIT_REFUSED, "NoInference", "Suspended", GPU_HOURS_SPENT, "ReconcileFailed"})
"""Reasons of Ready and Updated that last until somebody changes something. Other reasons may pass by themselves."""


class PoolKey(NamedTuple):
    """Name of a pool where its kind is known."""

    namespace: str
    name: str


class Renewal(KindModel):
    """Replacement of allocations before their walltime ends, or after the pool was changed."""

    strategy: Literal["Overlap", "Replace"] = "Overlap"
    """Overlap: the old one ends after its successor is ready. Replace: the successor starts after the old one's job has
    ended."""
    before_expiry_seconds: int | None = Field(default=None, ge=0)
    """Seconds from the successor's readiness to the end of the walltime. Default: 900, or the sum of the stages' budgets."""
    max_surge: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Most successors that exist at once beside the allocations that they replace."""
    drain_timeout_seconds: int = Field(default=600, ge=0)
    """Seconds that an ending allocation may use to finish its work. Then it hands back the rest."""


def check_one_node(allocation: AllocationTemplate, who: str) -> None:
    if allocation.nodes > 1:
        raise ValueError(f"`allocation.nodes`: {who} runs on one node; write `replicas: {allocation.nodes}` instead")


def check_one_size(replicas: int | None, autoscaling: Autoscaling | None) -> None:
    if replicas is not None and autoscaling is not None:
        raise ValueError(
            "set `replicas` for a fixed size, or `autoscaling` for a size that follows the demand, not both"
        )
    if replicas is None and autoscaling is None:
        raise ValueError("set `replicas` for a fixed size, or `autoscaling` for a size that follows the demand")


def check_gpus_counted(max_gpu_hours: float | None, allocation: AllocationTemplate) -> None:
    if max_gpu_hours is not None and allocation.gpus == 0:
        raise ValueError(
            "`maxGpuHours` counts the GPUs of `allocation`, which has none; "
            "set `allocation.gpusPerNode`, or leave out `maxGpuHours`"
        )


class Replicas(StatusModel):
    """Numbers of allocations: `desired` (target), `requested` (submitted), `observed` (seen in Slurm), `ready` (healthy) and
    `updated` (ready and made from the present spec). The last two are never above `desired`."""

    desired: int = 0
    requested: int = 0
    observed: int = 0
    ready: int = 0
    updated: int = 0


class PoolStatus(StatusModel):
    observed_generation: int = 0
    replicas: Replicas = Replicas()
    conditions: list[Condition] = []
    next_index: int = 0
    """Index of the next allocation."""
    startup_seconds: float | None = None
    """Seconds from submit to ready, as measured lately. Successors are submitted this much earlier."""
    startup_measured_at: datetime | None = None
    """Time at which the last allocation of this measurement became ready."""
    template_hash: str = ""
    """Hash of the spec that allocations are made from now."""
    failures: int = 0
    """Allocations of this hash that failed in a row; the back-off grows with them. 0 again once one was ready for 10 s."""
    last_failure_time: datetime | None = None
    interruptions: int = 0
    """Allocations in a row that were ended from outside: by a node, an administrator or a user."""
    last_interruption_time: datetime | None = None
    scaling: ScalingRecord = ScalingRecord()
    gpu_hours: float = 0
    """GPU-hours used so far. Running allocations count up to the last full ten minutes."""
    gpu_ledger: GpuLedger = GpuLedger()
    decisions: list[ScalingDecision] = []
    """Last scaling decisions, newest last."""


class PoolObject(KindObject):
    """Common base of the two kinds of pool."""

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.metadata.namespace, self.metadata.name)

    @model_validator(mode="after")
    def _room_for_a_suffix(self) -> Self:
        if len(self.metadata.name) > MAX_NAME:
            raise ValueError(f"the name of a pool has at most {MAX_NAME} characters")
        return self
