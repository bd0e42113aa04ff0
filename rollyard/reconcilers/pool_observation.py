"""What one kind of pool knows and the other does not, as the reconciler of both asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.autoscaler import Metric
from rollyard.reconcilers.plan import Member
from rollyard.server.weights.pool_update import WeightsEvent


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition, but for the times."""

    type: str
    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """One look at a pool."""

    members: list[Member]
    """One for each allocation."""
    metrics: list[Metric]
    """What is asked of it, where its size follows the demand."""
    status_update: dict[str, Any]
    """Further fields of its status."""
    problem: tuple[str, str] | None
    """(reason, message) of what keeps it from being ready however many allocations are."""
    not_ready_reasons: tuple[str, str] | None = None
    """(reason, message) of why allocations that run and count are not ready."""
    why_full: str = ""
    """Why it takes no more sessions though it is ready; empty while it does."""
    conditions: list[ConditionUpdate] = field(default_factory=list)
    """Further conditions."""
    events: list[WeightsEvent] = field(default_factory=list)
    """Events to write once the status is."""


class PoolObserver(Protocol):
    async def observe(self, pool: Pool, allocations: Sequence[Allocation]) -> PoolObservation: ...

    async def on_deleted(self, pool: Pool) -> None:
        """The pool is going: end what waits for it."""
        ...
