"""How many allocations a pool should have. Pure.

desired = ceil(demand / capacity of one), between min and max: up at once, down only after the demand has asked for less
all through `idleTimeoutSeconds` (Kubernetes' HPA, stabilisation window; its tolerance of 0.1 applies on the way down). A
demand that is not known (None) blocks scaling down only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollyard.kinds.pools import Autoscaling

TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Scale:
    desired: int
    below_since: float | None
    """Since when (Unix seconds) the demand has asked for less."""
    message: str
    """The numbers it was made from."""


def autoscale(
    bounds: Autoscaling, *, current: int, demand: int | None, capacity: int, below_since: float | None, now: float
) -> Scale:
    """The next size of a pool that follows its demand."""
    low, high = bounds.min_replicas, bounds.max_replicas
    kept = min(max(current, low), high)
    if demand is None:
        return Scale(kept, None, "the demand is not known; nothing is scaled down")
    wanted = min(max(math.ceil(demand / capacity), low), high)
    numbers = f"demand {demand}, {capacity} each, between {low} and {high}"
    if wanted >= kept:
        return Scale(wanted, None, numbers)
    nearly = demand > 0 and demand / (kept * capacity) > 1 - TOLERANCE
    if nearly:
        return Scale(kept, None, numbers)
    since = now if below_since is None else below_since
    if now - since < bounds.idle_timeout_seconds:
        return Scale(kept, since, numbers)
    return Scale(wanted, None, f"{numbers}, lower for {now - since:.0f} s")
