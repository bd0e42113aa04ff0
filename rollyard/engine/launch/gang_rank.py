"""One process's place among those of a replica that spans nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GangRank:
    """Where one process stands in its gang."""

    rank: int
    size: int
    address: str
    """Of rank 0, as the other nodes reach it."""
    port: int
    """Free on rank 0 when it was chosen."""
    model: str | None = None
    """Folder of the weights that all of them start with; None for that of the pool's spec."""
