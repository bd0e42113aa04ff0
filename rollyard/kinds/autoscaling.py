"""How a pool's size follows its demand: the user's bounds and rules, and what the autoscaler has to know after a restart.

Words and defaults are those of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), with `Count` for `Pods`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from rollyard.kinds.base import Kinded, Observed

MAX_REPLICAS = 4096
MAX_WINDOW_SECONDS = 3600
MAX_PERIOD_SECONDS = 1800


class ScalingPolicy(Kinded):
    """A limit on how much may change within a period."""

    type: Literal["Count", "Percent"]
    """Whether `value` counts allocations or is a share of those at the start of the period."""
    value: int = Field(ge=1)
    """Most allocations, or per cent, that may change within the period."""
    period_seconds: int = Field(ge=1, le=MAX_PERIOD_SECONDS)
    """Length of the period."""


class ScalingRules(Kinded):
    """How fast the size may follow in one direction."""

    policies: list[ScalingPolicy] = []
    """Limits; without any the size may change by any number at once."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """The policy that counts: the one that allows most, the one that allows least, or Disabled for never in this direction."""


class ScaleUpRules(ScalingRules):
    stabilization_window_seconds: int = Field(default=0, ge=0, le=MAX_WINDOW_SECONDS)
    """The size rises to what was asked for all through this time; 0 follows at once."""


class ScaleDownRules(ScalingRules):
    stabilization_window_seconds: int = Field(default=300, ge=0, le=MAX_WINDOW_SECONDS)
    """The size falls to the highest that was asked for in this time; 0 follows at once."""


class Behavior(Kinded):
    """How fast the size follows the demand, as in a HorizontalPodAutoscaler."""

    scale_up: ScaleUpRules = ScaleUpRules()
    """Towards more allocations."""
    scale_down: ScaleDownRules = ScaleDownRules()
    """Towards fewer allocations."""


class Autoscaling(Kinded):
    """Bounds between which the number of allocations follows the demand."""

    min_replicas: int = Field(default=0, ge=0, le=MAX_REPLICAS)
    """Fewest allocations."""
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS)
    """Most allocations."""
    idle_timeout_seconds: int = Field(default=900, ge=0)
    """How long there must be nothing to do before the last allocation is given back, where `minReplicas` is 0."""
    behavior: Behavior = Behavior()
    """How fast the size follows."""

    @model_validator(mode="after")
    def _ordered(self) -> Autoscaling:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"`maxReplicas` must be at least `minReplicas` ({self.min_replicas})")
        return self


class InferenceAutoscaling(Autoscaling):
    target_sessions_per_replica: int = Field(default=48, ge=1)
    """Live rollouts one model server should carry."""
    target_waiting_per_replica: int = Field(default=5, ge=1)
    """Requests that may wait at one model server, because it cannot take them yet."""
    target_kv_usage: float = Field(default=0.8, gt=0, le=1)
    """Share of its key-value cache that one model server should fill."""


class ScalingDecision(Observed):
    time: datetime
    desired: int
    message: str
    """The numbers it was made from."""


class ScalingRecord(Observed):
    """What the autoscaler must not forget with a restart of the server."""

    idle_since: datetime | None = None
    """Since when there has been nothing to do."""
    direction: Literal["Up", "Down"] | None = None
    """Where the last change went."""
    turns: list[datetime] = []
    """When the direction changed, as far back as the flap budget looks."""


class GpuSpell(Observed):
    """One allocation's time with its GPUs."""

    gpus: int
    start: datetime
    end: datetime | None = None
    """When it ended or, as long as that is not known, when its walltime ends; left out where it has no end."""

    def seconds(self, now: float) -> float:
        """GPU-seconds up to `now` (Unix seconds)."""
        end = now if self.end is None else min(now, self.end.timestamp())
        return self.gpus * max(0.0, end - self.start.timestamp())


class GpuLedger(Observed):
    """What a pool's allocations have spent. Each counts once: it is moved from `spells` to `past` when it is gone."""

    past: float = 0
    """GPU-seconds of allocations that are gone."""
    spells: dict[str, GpuSpell] = {}
    """Of those that are still there, by name."""

    def hours(self, now: float) -> float:
        """GPU-hours up to `now` (Unix seconds)."""
        return (self.past + sum(spell.seconds(now) for spell in self.spells.values())) / 3600
