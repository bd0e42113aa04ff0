"""Live sessions that should move to another endpoint between two turns, and how many at a time. Pure.

A move costs the session's prefix, which has to be computed again at the other endpoint. So all sessions of a draining
endpoint move, but a skew is ignored until it is large. Then it is reduced to the tolerated excess in several rounds,
the youngest sessions first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SKEW, SKEW_SESSIONS = 0.25, 2
"""Tolerated excess of an endpoint over its fair share, as a ratio and in sessions."""
MOVE_SHARE = 0.1
"""Share of its sessions that a skewed endpoint gives away in one round."""


@dataclass(frozen=True, slots=True)
class EndpointShare:
    """An endpoint with its sessions and its weight."""

    id: str
    sessions: int
    weight: float
    """Capacity, or the part of it that may be filled now; 0 if the endpoint takes no new work."""
    leaving: bool = False
    """True: the endpoint drains, so all its sessions should move."""


def excess(places: Sequence[EndpointShare]) -> dict[str, int]:
    """Endpoint id -> sessions above its share; none if no other endpoint could take them.

    An endpoint that takes no new work at present, and is not leaving, keeps its sessions: it may be loading new
    weights.
    """
    taking = [p for p in places if p.weight and not p.leaving]
    if not taking:
        return {}
    level = sum(p.sessions for p in taking) / sum(p.weight for p in taking)
    moves = {p.id: p.sessions for p in places if p.leaving and p.sessions}
    for place in taking:
        most = level * place.weight * (1 + SKEW)
        if place.sessions > most + SKEW_SESSIONS:
            moves[place.id] = math.ceil(place.sessions - most)
    return moves


def to_move(places: Sequence[EndpointShare]) -> dict[str, int]:
    """Endpoint id -> sessions to move in one round: the excess, but only a part of it if the endpoint is skewed."""
    known, moves = {p.id: p for p in places}, excess(places)
    return {
        id: n if known[id].leaving else min(n, max(1, int(known[id].sessions * MOVE_SHARE))) for id, n in moves.items()
    }
