"""Expectations: creations and deletions by this controller whose events have not arrived at the local copy (`informer`)
yet.

While an owner has open expectations, the local copy may lack a change, and a controller that trusted the copy would
repeat this change. All expectations of an owner lapse some time after the last one was opened, so that a missed event
does not stop the owner for ever (Kubernetes, pkg/controller/controller_utils.go).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from rollyard.core.clock import Clock

TIMEOUT_SECONDS = 30.0
Change = tuple[Literal["created", "deleted"], Hashable]


@dataclass(slots=True)
class _OpenExpectations:
    since: float
    changes: set[Change] = field(default_factory=set)


class Expectations:
    """Open expectations by owner. The owner is the pool whose allocations are created or deleted."""

    def __init__(self, clock: Clock, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._clock = clock
        self._timeout = timeout_seconds
        self._open: dict[Hashable, _OpenExpectations] = {}

    def expect(self, owner: Hashable, change: Change) -> None:
        """Open an expectation. Do this before the change, because the event may arrive during the change's call."""
        entry = self._open.setdefault(owner, _OpenExpectations(self._clock.monotonic()))
        entry.since = self._clock.monotonic()
        entry.changes.add(change)

    def observed(self, owner: Hashable, change: Change) -> None:
        """Close an expectation after the change's event has arrived, or after the change has failed."""
        entry = self._open.get(owner)
        if entry is None:
            return
        entry.changes.discard(change)
        if not entry.changes:
            del self._open[owner]

    def remaining(self, owner: Hashable) -> float:
        """Return the seconds until the owner's open expectations lapse; 0 if there are none."""
        entry = self._open.get(owner)
        if entry is None:
            return 0.0
        left = entry.since + self._timeout - self._clock.monotonic()
        if left <= 0:
            del self._open[owner]
        return max(left, 0.0)

    def forget(self, owner: Hashable) -> None:
        self._open.pop(owner, None)
