"""What the two kinds of pool share: size, renewal, and what is seen of their allocations."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeVar

from pydantic import Field

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.autoscaling import MAX_REPLICAS, Autoscaling, GpuLedger, ScalingDecision, ScalingRecord
from rollyard.kinds.base import Condition, Kinded, KindObject, Observed

MAX_NAME = 48
"""Allocations are called after their pool, with a suffix."""

STANDSTILL = frozenset({"CrashLoop", "SubmitRefused", "NoInference", "Suspended", "GpuHoursSpent", "ReconcileFailed"})
"""Reasons of Ready and Updated that hold until somebody changes something; other reasons may pass by themselves."""

P = TypeVar("P", bound=KindObject)


class Renewal(Kinded):
    """How allocations are replaced before their walltime ends, or because the pool was changed."""

    strategy: Literal["Overlap", "Replace"] = "Overlap"
    """Overlap: the successor is ready before the old one goes; Replace: it starts only when the old one's job has ended."""
    before_expiry_seconds: int | None = Field(default=None, ge=0)
    """How long before the walltime ends a successor should be ready; 900, or the sum of the stages' budgets, when left out."""
    max_surge: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Most successors at once that stand beside what they replace."""
    drain_timeout_seconds: int = Field(default=600, ge=0)
    """How long an allocation that goes may finish what it has in hand; the rest is handed back then."""


def one_node(allocation: AllocationTemplate, who: str) -> None:
    if allocation.nodes > 1:
        raise ValueError(f"`allocation.nodes`: write `replicas: {allocation.nodes}` instead: {who} works on one node")


def one_size(replicas: int | None, autoscaling: Autoscaling | None) -> None:
    if replicas is not None and autoscaling is not None:
        raise ValueError("set `replicas` for a fixed size or `autoscaling` for one that follows demand, not both")
    if replicas is None and autoscaling is None:
        raise ValueError("set `replicas` for a fixed size or `autoscaling` for one that follows demand")


def gpus_to_count(max_gpu_hours: float | None, allocation: AllocationTemplate) -> None:
    if max_gpu_hours is not None and allocation.gpus == 0:
        raise ValueError(
            "`maxGpuHours` counts the GPUs that `allocation` asks for, and it asks for none; "
            "set `allocation.gpusPerNode`, or leave out `maxGpuHours`"
        )


class Replicas(Observed):
    """`desired` is the target, `requested` is submitted, `observed` is seen in Slurm, `ready` is healthy, `updated` is ready
    and made from the spec as it is now. The last two count no more than what is desired."""

    desired: int = 0
    requested: int = 0
    observed: int = 0
    ready: int = 0
    updated: int = 0


class PoolStatus(Observed):
    observed_generation: int = 0
    replicas: Replicas = Replicas()
    conditions: list[Condition] = []
    next_index: int = 0
    """Index of the next allocation."""
    startup_seconds: float | None = None
    """From submit to ready, as lately measured; a successor is submitted so much earlier."""
    startup_measured_at: datetime | None = None
    """When the last allocation that was counted in it became ready."""
    template_hash: str = ""
    """Hash of what allocations are made from now."""
    failures: int = 0
    """How often in a row what was made from it failed; drives the back-off. One that was ready for ten seconds ends the row."""
    last_failure_time: datetime | None = None
    interruptions: int = 0
    """How often in a row allocations were ended from outside: by a node, an administrator or a person."""
    last_interruption_time: datetime | None = None
    scaling: ScalingRecord = ScalingRecord()
    gpu_hours: float = 0
    """GPU-hours spent so far; of allocations that run, up to the last full ten minutes."""
    gpu_ledger: GpuLedger = GpuLedger()
    decisions: list[ScalingDecision] = []
    """The last scaling decisions, newest last."""


def short_name(pool: P) -> P:
    if len(pool.metadata.name) > MAX_NAME:
        raise ValueError(f"write a pool's name with at most {MAX_NAME} characters")
    return pool
