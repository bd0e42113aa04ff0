"""The choice of a session's endpoint. The endpoint with the least load is taken, or a preferred endpoint with nearly
the least load. Equal loads are ordered by chance.

The load is the number of live sessions with the new session, divided by the capacity that may be filled now.
`EndpointChoice` chooses for new sessions and for sessions that move. For each pool, an `EndpointRanking` has the
endpoints that take work, in order of load. The ranking changes with each report and each session.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollyard.core.clock import Clock
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.admission import UNLIMITED, Admission
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.endpoint_state import SLOW_START_SECONDS, SLOW_START_STEPS, EndpointState
from rollyard.server.routing.session_index import SessionIndex
from rollyard.server.routing.surplus_sessions import EndpointShare, excess
from rollyard.wire.endpoint import Endpoint

FIRST_STEP = 2.0
"""A burst (see `Burst`) counts each session that it has added as 1 + FIRST_STEP sessions. The prompts of these sessions
arrive at the same time, and load the endpoint more than running sessions do."""
NEAR_RATIO = 0.125
"""The load of a preferred endpoint (warm prefix, or same node) may exceed the least load by this share."""
CLEARED_SECONDS = 10.0
"""For this many seconds after a successful probe, a session may return to the endpoint that it reported as failed."""
Allow = Callable[[Endpoint], bool]
"""Function that returns whether the endpoint's weights suit the session."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that takes new work."""

    endpoint: Endpoint
    node: str = ""
    capacity: float = 1.0
    """Capacity relative to the other endpoints of the pool, such as the number of GPUs; above 0."""
    share: float = 1.0
    """Share of the capacity that may be filled now. The share is below 1 during the slow start."""
    admission: Admission = UNLIMITED

    def load(self, sessions: float) -> float:
        """Load with one more session than `sessions`. An endpoint without sessions counts with its full capacity. With
        its small share in the slow start it would not get a first session."""
        return (sessions + 1) / (self.capacity * (self.share if sessions else 1.0))


class _Rank(NamedTuple):
    """One endpoint's place in the order. Ranks are compared as tuples. Two ranks differ at least in the id, so
    candidates are never compared."""

    load: float
    chance: float
    id: str
    candidate: Candidate
    sessions: int
    begun: int
    """Number of sessions that the present burst has added. `sessions` includes them."""

    @property
    def load_with_one_less(self) -> float:
        return self.candidate.load(max(0, self.sessions + FIRST_STEP * self.begun - 1))


def _rank(candidate: Candidate, sessions: int, begun: int = 0) -> _Rank:
    load = candidate.load(sessions + FIRST_STEP * begun)
    return _Rank(load, random.random(), candidate.endpoint.id, candidate, sessions, begun)


class Burst:
    """A copy of the ranking, for several choices together. The copy may be used in another thread.

    The chosen sessions count only in this copy, until the session index has them. So a burst whose sessions are not
    stored has no effect.
    """

    def __init__(self, ranks: list[_Rank], by_id: Mapping[str, _Rank], nodes: Mapping[str, Sequence[str]]) -> None:
        """`by_id`, `nodes`: the mappings of the ranking itself, not copies. These mappings may change during the
        burst."""
        self._ranks = ranks
        self._by_id = by_id
        self._nodes = nodes
        self._own: dict[str, _Rank] = {}
        """Endpoints to which this burst has given sessions."""

    def checkout(self, *, node: str = "", warm: Sequence[str] = (), allow: Allow | None = None) -> Endpoint | None:
        """Take the allowed endpoint with the least load, and count one more session on it. Return None if no allowed
        endpoint has room.

        Endpoints in `warm` are preferred, because they have a part of the prompt in their caches; the endpoints on
        `node` come second. But the load of a preferred endpoint may exceed the least load by at most NEAR_RATIO, and by
        at most one session.
        """
        for best in self._ranks:
            if allow is None or allow(best.candidate.endpoint):
                break
        else:
            return None
        near = self._nearly_best(best.load, warm, allow)
        if near is None and node:
            near = self._nearly_best(best.load, self._nodes.get(node, ()), allow)
        taken = near or best
        del self._ranks[bisect_left(self._ranks, taken)]
        more = self._own[taken.id] = _rank(taken.candidate, taken.sessions + 1, taken.begun + 1)
        if more.candidate.admission.admits(more.sessions):
            insort(self._ranks, more)
        return taken.candidate.endpoint

    def reason(self, chosen: Endpoint, *, node: str = "", warm: Sequence[str] = ()) -> str:
        """Return why `checkout` with these arguments chose this endpoint: `WarmPrefix`, `SameNode` or `LeastLoad`."""
        if chosen.id in warm:
            return "WarmPrefix"
        return "SameNode" if node and chosen.id in self._nodes.get(node, ()) else "LeastLoad"

    def _nearly_best(self, best: float, ids: Sequence[str], allow: Allow | None) -> _Rank | None:
        """Return the least loaded of the endpoints in `ids` that are allowed, have room, and have a load close enough
        to `best`, the least load; None if there is none."""
        found, least = None, best * (1 + NEAR_RATIO)
        for id in ids:
            rank = self._own.get(id) or self._by_id.get(id)
            if rank is None or rank.load > least or (found is not None and rank.load == least):
                continue
            if (
                (rank.load <= best or rank.load_with_one_less <= best)
                and self._has(rank)
                and (allow is None or allow(rank.candidate.endpoint))
            ):
                found, least = rank, rank.load
        return found

    def _has(self, rank: _Rank) -> bool:
        """Whether this rank is in the order. A rank is missing if its endpoint is full or has changed since the copy."""
        i = bisect_left(self._ranks, rank)
        return i < len(self._ranks) and self._ranks[i] is rank


class EndpointRanking:
    """Endpoints of one pool that take work, the least loaded first."""

    def __init__(self) -> None:
        self._ranks: list[_Rank] = []
        """Endpoints that admit one more session, in order."""
        self._by_id: dict[str, _Rank] = {}
        """All endpoints that take work, including full endpoints."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Node -> ids of the endpoints on it."""

    def burst(self) -> Burst:
        return Burst(self._ranks.copy(), self._by_id, self._nodes)

    def put(self, candidate: Candidate, sessions: int) -> None:
        """Add or replace an endpoint that takes work."""
        id, node = candidate.endpoint.id, candidate.node
        before = self._by_id.get(id)
        if before is None or before.candidate.node != node:
            self.drop(id)
            self._nodes[node] = (*self._nodes.get(node, ()), id)
        else:
            self._remove(before)
        self._insert(candidate, sessions)

    def set_sessions(self, id: str, sessions: int) -> None:
        """Set an endpoint's number of live sessions. An endpoint that takes no work is ignored."""
        rank = self._by_id.get(id)
        if rank is not None:
            self._remove(rank)
            self._insert(rank.candidate, sessions)

    def drop(self, id: str) -> None:
        """Remove an endpoint, because it takes no work now."""
        rank = self._by_id.pop(id, None)
        if rank is None:
            return
        self._remove(rank)
        node = rank.candidate.node
        self._nodes[node] = tuple(other for other in self._nodes[node] if other != id)
        if not self._nodes[node]:
            del self._nodes[node]

    def _insert(self, candidate: Candidate, sessions: int) -> None:
        rank = self._by_id[candidate.endpoint.id] = _rank(candidate, sessions)
        if candidate.admission.admits(sessions):
            insort(self._ranks, rank)

    def _remove(self, rank: _Rank) -> None:
        if rank.candidate.admission.admits(rank.sessions):
            del self._ranks[bisect_left(self._ranks, rank)]


class EndpointChoice:
    """Chooses endpoints of all pools."""

    def __init__(self, clock: Clock, endpoints: EndpointRegistry, sessions: SessionIndex) -> None:
        self._clock = clock
        self._endpoints = endpoints
        self._sessions = sessions
        self._rankings: defaultdict[PoolKey, EndpointRanking] = defaultdict(EndpointRanking)
        self._warming: set[str] = set()
        """Endpoints in their slow start."""
        self._next_step = 0.0
        """Time of the next step of slow starts."""

    def burst(self, pool: PoolKey) -> Burst:
        """Return the endpoints of this pool that take new work now, for one burst of checkouts."""
        self._advance_slow_starts()
        return self._rankings[pool].burst()

    def choose_again(
        self, pool: PoolKey, current: str, failed: str, node: str = "", allow: Allow | None = None
    ) -> Endpoint | None:
        """Choose an endpoint for a running session on `current`. `failed`: endpoint that could not be used, or empty.

        `allow` is true for the chosen endpoint. If nothing failed, `current` is kept, unless it takes no work or has
        too many sessions. Otherwise another endpoint is chosen as for a new session, or the least loaded one if all are
        full. If no other endpoint takes work, `current` is kept if it is ready; after a failure a probe must also just
        have succeeded. Return None if no endpoint is left.
        """
        here = self._endpoints.get(current)
        if here is not None and allow is not None and not allow(here.endpoint):
            here = None
        if not failed and here is not None and not self._should_leave(here):
            return here.endpoint

        def elsewhere(endpoint: Endpoint) -> bool:
            return endpoint.id not in (failed, current) and (allow is None or allow(endpoint))

        found = self.burst(pool).checkout(node=node, allow=elsewhere) or self._least_loaded(pool, elsewhere)
        if found is None and here is not None and here.ready and (not failed or self._was_just_cleared(here)):
            return here.endpoint
        return found

    def shares(self, pool: PoolKey) -> list[EndpointShare]:
        """Endpoints of this pool, each with its sessions and the capacity that may be filled now."""
        now = self._clock.monotonic()
        return [
            EndpointShare(
                s.endpoint.id,
                self._sessions.count(s.endpoint.id),
                s.capacity * s.capacity_share(now) if s.ready else 0.0,
                s.drain,
            )
            for s in self._endpoints.of_pool(pool)
        ]

    def _should_leave(self, state: EndpointState) -> bool:
        return not state.is_accepting or state.endpoint.id in excess(self.shares(state.pool))

    def _was_just_cleared(self, state: EndpointState) -> bool:
        return self._clock.monotonic() - state.trust.cleared_at < CLEARED_SECONDS

    def _least_loaded(self, pool: PoolKey, allow: Allow) -> Endpoint | None:
        """Return the least loaded of the allowed endpoints, including full endpoints."""
        able = [s for s in self._endpoints.of_pool(pool) if s.is_accepting and allow(s.endpoint)]
        least = min(able, key=lambda s: (self._sessions.count(s.endpoint.id) + 1) / s.capacity, default=None)
        return least.endpoint if least is not None else None

    # the order

    def rank(self, state: EndpointState) -> None:
        """Update the order after a change of an endpoint."""
        id, now = state.endpoint.id, self._clock.monotonic()
        if not state.is_accepting:
            self._rankings[state.pool].drop(id)
            return
        candidate = Candidate(state.endpoint, state.node, state.capacity, state.capacity_share(now), state.admission)
        self._rankings[state.pool].put(candidate, self._sessions.count(id))
        if state.warm_at > now:
            self._warming.add(id)

    def recount(self, endpoint: str) -> None:
        """Update the order after a change of an endpoint's live sessions."""
        state = self._endpoints.get(endpoint)
        if state is not None:
            self._rankings[state.pool].set_sessions(endpoint, self._sessions.count(endpoint))

    def _advance_slow_starts(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_step:
            return
        self._next_step = now + SLOW_START_SECONDS / SLOW_START_STEPS
        warming, self._warming = self._warming, set()
        for state in filter(None, map(self._endpoints.get, warming)):
            self.rank(state)  # adds the endpoint to `_warming` again, unless its slow start has ended
