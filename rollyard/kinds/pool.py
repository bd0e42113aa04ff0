"""Common parts of the two kinds of pool: size, renewal, and status."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rollyard.kinds.allocation import SUBMIT_REFUSED, AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, Autoscaling, GpuLedger, ScalingDecision, ScalingRecord
from rollyard.kinds.base import Condition, KindModel, KindObject, StatusModel

MAX_NAME = 48
"""Greatest length of a pool's name. The name of an allocation is the pool's name with a suffix."""

GPU_HOURS_SPENT = "GpuHoursSpent"
STANDSTILL = frozenset({"CrashLoop", SUBMIT_REFUSED, "NoInference", "Suspended", GPU_HOURS_SPENT, "ReconcileFailed"})
"""Reasons in the conditions Ready and Updated that usually last until a person changes something. Other reasons usually
pass by themselves."""


class PoolKey(NamedTuple):
    """Namespace and name of a pool whose kind is known from the context."""

    namespace: str
    name: str


class Renewal(KindModel):
    """Replacement of allocations before their walltime ends, or after the pool was changed."""

    strategy: Literal["Overlap", "Replace"] = "Overlap"
    """Overlap: the old allocation ends after its successor is ready. Replace: the successor starts after the job of the old
    allocation has ended."""
    before_expiry_seconds: int | None = Field(default=None, ge=0)
    """Planned seconds from the readiness of the successor to the end of the old allocation's walltime. More than half
    of the walltime has no effect. Default: 900; for a RolloutPool the sum of the stages' budgets plus 30."""
    max_surge: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Greatest number of successors at the same time, beside the allocations that are being replaced."""
    drain_timeout_seconds: int = Field(default=600, ge=0)
    """Seconds in which an ending allocation may finish its work. After this time the allocation hands back unfinished
    work."""


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
    `updated` (ready and made from the present spec). `ready` and `updated` are never above `desired`."""

    desired: int = 0
    requested: int = 0
    observed: int = 0
    ready: int = 0
    updated: int = 0


class Revision(StatusModel):
    """Template that the pool's spec once had: the fields whose change replaces the allocations."""

    number: int
    """Later revisions have greater numbers. A template that comes again gets a new number, and its old entry goes."""
    template_hash: str
    time: datetime
    """Time at which new allocations began to be made from it."""
    template: dict[str, Any]
    """Field of the spec -> its value without defaults, as in a manifest."""


class PoolStatus(StatusModel):
    observed_generation: int = 0
    replicas: Replicas = Replicas()
    conditions: list[Condition] = []
    next_index: int = 0
    """Index of the next allocation."""
    startup_seconds: float | None = None
    """Recently measured seconds from submit to ready. A successor is submitted this long before it must be ready. This
    lead is at most a quarter of the walltime."""
    startup_measured_at: datetime | None = None
    """Time at which the last measured allocation became ready."""
    template_hash: str = ""
    """Hash of the spec from which new allocations are made."""
    failures: int = 0
    """Number of allocations with this template hash that failed in a row. The back-off grows with this number. The number
    returns to 0 when an allocation has been ready for 10 s, or 60 s after the last failure if all allocations are
    ready."""
    last_failure_time: datetime | None = None
    interruptions: int = 0
    """Number of allocations in a row that a node, an administrator, a user or an unknown cause ended."""
    last_interruption_time: datetime | None = None
    scaling: ScalingRecord = ScalingRecord()
    gpu_hours: float = 0
    """GPU-hours used so far. The time of a running allocation is included up to the last full ten minutes."""
    gpu_ledger: GpuLedger = GpuLedger()
    decisions: list[ScalingDecision] = []
    """Recent scaling decisions; the newest is at the end."""
    revisions: list[Revision] = []
    """Templates of the spec, the present one at the end. The last ten are kept."""


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
