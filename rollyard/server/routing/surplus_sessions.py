"""Numbers of live sessions that should leave each endpoint between two turns. Pure.

A move is costly, because the other endpoint has to compute the session's prefix again. So an uneven distribution is
tolerated up to a limit, and above this limit it is reduced in several rounds. All sessions of a draining endpoint move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SKEW, SKEW_SESSIONS = 0.25, 2
"""An endpoint may exceed its fair share by SKEW times this share, plus SKEW_SESSIONS sessions."""
MOVE_SHARE = 0.1
"""An endpoint with too many sessions gives away this share of them in one round, rounded down, but at least one. It
gives away fewer if its surplus is smaller."""


@dataclass(frozen=True, slots=True)
class EndpointShare:
    """An endpoint's number of sessions and its weight."""

    id: str
    sessions: int
    weight: float
    """Capacity that may be filled now; 0 if the endpoint takes no new work."""
    leaving: bool = False
    """True: the endpoint drains, so all its sessions should move."""


def excess(places: Sequence[EndpointShare]) -> dict[str, int]:
    """Endpoint id -> number of sessions that should leave; empty if no endpoint could take them.

    An endpoint that takes no new work and is not leaving keeps its sessions, because it may be loading new weights.
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
    """Endpoint id -> number of sessions to move in one round: all of a leaving endpoint, else at most MOVE_SHARE."""
    known, moves = {p.id: p for p in places}, excess(places)
    return {
        id: n if known[id].leaving else min(n, max(1, int(known[id].sessions * MOVE_SHARE))) for id, n in moves.items()
    }
