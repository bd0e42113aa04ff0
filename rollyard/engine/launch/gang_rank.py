"""One process's rank in a replica that spans nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GangRank:
    """The rank of one process, and the address of rank 0."""

    rank: int
    size: int
    address: str
    """Address of rank 0 for the other nodes."""
    port: int
    """A port that was free on rank 0 when it was chosen."""
    model: str | None = None
    """Folder of the weights with which all ranks start; None for the weights of the pool's spec."""
