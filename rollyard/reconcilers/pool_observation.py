"""What one kind of pool knows and the other does not, as the reconciler of both asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.autoscaler import Metric
from rollyard.reconcilers.plan import Member
from rollyard.server.weights.pool_update import Said


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition, but for the times."""

    type: str
    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a pool."""

    members: list[Member]
    """One for each allocation."""
    metrics: list[Metric]
    """What is asked of it, where its size follows the demand."""
    details: dict[str, Any]
    """Further fields of its status."""
    problem: tuple[str, str] | None
    """(reason, message) of what keeps it from being ready however many allocations are."""
    trouble: tuple[str, str] | None = None
    """(reason, message) of why allocations that run and count are not ready."""
    full: str = ""
    """Why it takes no more sessions though it is ready; empty while it does."""
    conditions: list[Fact] = field(default_factory=list)
    """Further conditions."""
    said: list[Said] = field(default_factory=list)
    """Events to write once the status is."""


class Trade(Protocol):
    async def look(self, pool: Pool, allocations: Sequence[Allocation]) -> Look: ...

    async def deleted(self, pool: Pool) -> None:
        """The pool is going: end what waits for it."""
        ...
