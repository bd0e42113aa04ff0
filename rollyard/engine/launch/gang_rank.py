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
    """A port on rank 0's node that was free when rank 0 chose it."""
    model: str | None = None
    """Folder of the weights with which all ranks start; None for the weights of the pool's spec."""
