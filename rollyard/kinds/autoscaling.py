"""Autoscaling of a pool: the user's bounds and rules, and the state that the autoscaler keeps over a restart of the
server.

Words and default windows are those of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), with `Count` for `Pods`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from rollyard.kinds.base import KindModel, StatusModel

MAX_REPLICAS = 4096
MAX_WINDOW_SECONDS = 3600
MAX_PERIOD_SECONDS = 1800


class ScalingPolicy(KindModel):
    """Limit on the change of the size within a period."""

    type: Literal["Count", "Percent"]
    """Unit of `value`. Count: allocations. Percent: per cent of the allocations at the start of the period."""
    value: int = Field(ge=1)
    """Largest change within the period, in allocations or per cent."""
    period_seconds: int = Field(ge=1, le=MAX_PERIOD_SECONDS)
    """Length of the period."""


class ScalingRules(KindModel):
    """Speed of scaling in one direction."""

    policies: list[ScalingPolicy] = []
    """Limits on the speed. Without limits, the size may change by any number in one step."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """Choice between the policies. Max allows the largest change, Min the smallest. Disabled never scales in this direction."""


class ScaleUpRules(ScalingRules):
    stabilization_window_seconds: int = Field(default=0, ge=0, le=MAX_WINDOW_SECONDS)
    """Window in seconds. The size rises to the lowest recommendation of the window; with 0, to each new recommendation."""


class ScaleDownRules(ScalingRules):
    stabilization_window_seconds: int = Field(default=300, ge=0, le=MAX_WINDOW_SECONDS)
    """Window in seconds. The size falls to the highest recommendation of the window; with 0, to each new recommendation."""


class Behavior(KindModel):
    """Speed of scaling, as in a HorizontalPodAutoscaler."""

    scale_up: ScaleUpRules = ScaleUpRules()
    """Scaling to more allocations."""
    scale_down: ScaleDownRules = ScaleDownRules()
    """Scaling to fewer allocations."""


class Autoscaling(KindModel):
    """Bounds of a size that follows the demand."""

    min_replicas: int = Field(default=0, ge=0, le=MAX_REPLICAS)
    """Smallest number of allocations of the pool."""
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS)
    """Greatest number of allocations of the pool."""
    idle_timeout_seconds: int = Field(default=900, ge=0)
    """Seconds without work after which the last allocation is given back, if `minReplicas` is 0."""
    behavior: Behavior = Behavior()
    """Speed of scaling."""

    @model_validator(mode="after")
    def _ordered(self) -> Autoscaling:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"`maxReplicas` must be at least `minReplicas` ({self.min_replicas})")
        return self


class InferenceAutoscaling(Autoscaling):
    target_sessions_per_replica: int = Field(default=48, ge=1)
    """Target number of sessions on one model server. Sessions of rollouts and of external agents count alike."""
    target_waiting_per_replica: int = Field(default=5, ge=1)
    """Target number of requests that wait at one model server."""
    target_kv_usage: float = Field(default=0.8, gt=0, le=1)
    """Target for the filled share of a model server's key-value cache, 0 to 1."""


class ScalingDecision(StatusModel):
    time: datetime
    desired: int
    message: str
    """Sentence with the numbers that led to the decision."""


class ScalingRecord(StatusModel):
    """State that the autoscaler keeps over a restart of the server."""

    idle_since: datetime | None = None
    """Time since which the pool has no work. Absent while the pool has work, or while its demand is unknown."""
    direction: Literal["Up", "Down"] | None = None
    """Direction of the last change."""
    turns: list[datetime] = []
    """Times of the recent changes of direction. The autoscaler allows only a few changes of direction in an hour."""


class GpuUsage(StatusModel):
    """Time for which one allocation held its GPUs."""

    gpus: int
    start: datetime
    end: datetime | None = None
    """Time at which the allocation ended. Until this is known: the end of its walltime. Absent if the walltime is unlimited."""

    def seconds(self, now: float) -> float:
        """GPU-seconds up to `now` (Unix seconds)."""
        end = now if self.end is None else min(now, self.end.timestamp())
        return self.gpus * max(0.0, end - self.start.timestamp())


class GpuLedger(StatusModel):
    """GPU time that the allocations of a pool have used. The GPU time of an existing allocation is in `spells`. When
    the allocation no longer exists, its GPU time is in `past`."""

    past: float = 0
    """GPU-seconds of allocations that no longer exist."""
    spells: dict[str, GpuUsage] = {}
    """Usage of allocations that still exist, by name."""

    def hours(self, now: float) -> float:
        """GPU-hours up to `now` (Unix seconds)."""
        return (self.past + sum(spell.seconds(now) for spell in self.spells.values())) / 3600
