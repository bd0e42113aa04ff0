"""Planned successors of allocations: when each is submitted, and when it takes over."""

from __future__ import annotations

from rollyard.kinds.base import WireModel


class PlannedSuccessor(WireModel):
    """Successor that is not submitted yet, by the present plan. Times are Unix seconds."""

    namespace: str
    allocation: str
    """Name of the allocation that it will replace."""
    waits_for: str | None
    """Name of another allocation's successor that has to start first, because it takes the last place of `maxSurge`."""
    submit_at: float | None
    """Time of the submit. Null while Slurm expects the one that it waits for at no time yet."""
    take_over_at: float | None
    """Time at which the old allocation drains, if the successor is ready then; null while it waits for another one."""


class PlannedSuccessors(WireModel):
    """Answer of `GET /v1/allocations/successors`."""

    successors: list[PlannedSuccessor]
