"""Interface between the reconciler of pools and the observers, one for each kind of pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ConditionUpdate, Reason
from rollyard.kinds.event import PoolEvent
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.autoscaler import Metric
from rollyard.reconcilers.plan import Member


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """State of a pool at one moment."""

    members: list[Member]
    """One member for each allocation."""
    metrics: list[Metric]
    """Demand on the pool, if its size follows the demand."""
    status_update: dict[str, Any]
    """Further fields of the pool's status."""
    problem: Reason | None
    """Reason why the pool cannot be ready, however many allocations it has."""
    why_not_ready: Reason | None = None
    """Reason why running allocations of the pool are not ready."""
    why_not_admitting: Reason | None = None
    """Reason why no endpoint takes one more session; None if one does, and for a RolloutPool."""
    conditions: list[ConditionUpdate] = field(default_factory=list)
    """Further conditions."""
    events: list[PoolEvent] = field(default_factory=list)
    """Events to write after the status."""


class PoolObserver(Protocol):
    async def observe(self, pool: Pool, allocations: Sequence[Allocation]) -> PoolObservation: ...

    async def on_deleted(self, pool: Pool) -> None:
        """Handle the work that waits for a pool that is being deleted."""
