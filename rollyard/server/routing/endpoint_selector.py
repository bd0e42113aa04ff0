"""The choice of an endpoint: the least load first, where load is live sessions per capacity; ties by chance.

`EndpointIndex` is kept in order one endpoint at a time, as leases and heartbeats change; it counts nothing itself. An
`EndpointSelector` is its state at one moment, for one burst of checkouts. The burst's sessions count in that selector
alone until they are in the leases, so a burst that is not stored has no effect.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollyard.server.routing.admission import UNLIMITED, Admission
from rollyard.wire.endpoint import Endpoint

FIRST_STEP = 2.0
"""Extra weight of a session in the burst that begins it."""
NEAR_RATIO = 0.125
"""Share of the load that a warm prefix or a node-local way may cost."""
STALE, FEW = 1.25, 16
"""Greatest length of a heap, as a multiple of its current items, and a little more where it is short."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that takes new work."""

    endpoint: Endpoint
    node: str = ""
    capacity: float = 1.0
    """Capacity relative to the others of its pool, such as GPUs; above 0."""
    share: float = 1.0
    """Share of its capacity that it may fill now: below 1 during its slow start."""
    admission: Admission = UNLIMITED

    def admits(self, sessions: int) -> bool:
        return self.admission.admits(sessions)

    def load(self, sessions: float) -> float:
        """Load with one session more. An idle endpoint counts in full, or none would ever be the first."""
        return (sessions + 1) / (self.capacity * (self.share if sessions else 1.0))


class _Entry:
    """One endpoint with one number of sessions, valid from one change of the index to another."""

    __slots__ = ("begun", "candidate", "ended", "load", "sessions")

    def __init__(self, candidate: Candidate, sessions: int, begun: int = 0) -> None:
        self.candidate = candidate
        self.sessions = sessions
        self.begun = begun
        """Sessions among them that this burst has put there: their prompts all come at once."""
        self.load = candidate.load(sessions + FIRST_STEP * begun)
        self.ended: float = math.inf
        """The index's count of changes at which it became invalid."""

    @property
    def load_with_one_less(self) -> float:
        """Load with one session less."""
        return self.candidate.load(max(0, self.sessions + FIRST_STEP * self.begun - 1))


_HeapItem = tuple[float, float, int, _Entry]
"""(load, chance, number, entry): in the order of heaps; the number keeps entries from being compared."""


class EndpointSelector:
    """Selector for one burst of checkouts; made by `EndpointIndex.selector`. It may be used in another thread."""

    def __init__(self, order: EndpointIndex, heap: list[_HeapItem], changes: int) -> None:
        self._order = order
        self._heap = heap
        self._changes = changes
        """The index's count of changes at creation: entries that became invalid later still hold here."""
        self._own: dict[str, _Entry | None] = {}
        """Entries that this burst changed; None for an endpoint that is full."""

    def checkout(
        self, *, node: str = "", warm: Sequence[str] = (), allow: Callable[[Endpoint], bool] | None = None
    ) -> Endpoint | None:
        """Take the allowed endpoint with the least load, which then counts one more; None when there is none.

        Endpoints in `warm` have a part of its prompt in their caches and go first, after them those on `node`, as long
        as they have at most one session more than the best, and that is no more than NEAR_RATIO of the load.
        """
        best = self._least_loaded(allow)
        if best is None:
            return None
        load, mark = best[0], best[3]
        near = self._nearly_least_loaded(load, warm, allow) if warm else None
        if near is None and node:
            near = self._nearly_least_loaded(load, self._order.on_node(node), allow)
        return self._count_session(near or mark)

    def _least_loaded(self, allow: Callable[[Endpoint], bool] | None) -> _HeapItem | None:
        """The first item of the heap that is current and allowed; it stays in the heap."""
        passed: list[_HeapItem] = []
        heap, found = self._heap, None
        while heap:
            entry = heap[0]
            if not self._is_current(entry[3]):
                heapq.heappop(heap)
            elif allow is None or allow(entry[3].candidate.endpoint):
                found = entry
                break
            else:
                passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _is_current(self, mark: _Entry) -> bool:
        id = mark.candidate.endpoint.id
        return self._own[id] is mark if id in self._own else mark.ended > self._changes

    def _nearly_least_loaded(
        self, best: float, ids: Sequence[str], allow: Callable[[Endpoint], bool] | None
    ) -> _Entry | None:
        """The least loaded of these, if it is hardly worse than the best."""
        found, least = None, best * (1 + NEAR_RATIO)
        for id in ids:
            mark = self._own[id] if id in self._own else self._order.entry(id)
            if mark is None or mark.load > least or (found is not None and mark.load == least):
                continue
            if (mark.load <= best or mark.load_with_one_less <= best) and (
                allow is None or allow(mark.candidate.endpoint)
            ):
                found, least = mark, mark.load
        return found

    def _count_session(self, mark: _Entry) -> Endpoint:
        candidate, sessions = mark.candidate, mark.sessions + 1
        endpoint = candidate.endpoint
        if candidate.admits(sessions):
            more = self._own[endpoint.id] = _Entry(candidate, sessions, mark.begun + 1)
            heapq.heappush(self._heap, _heap_item(more))
        else:
            self._own[endpoint.id] = None
        return endpoint


class EndpointIndex:
    """The endpoints of one pool that take work, in order; updated at each change, one endpoint at a time."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._entries: dict[str, _Entry] = {}
        self._heap: list[_HeapItem] = []
        """All entries, and some that have become invalid."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Node -> endpoints; each replaced, never changed, for a selector may be read in another thread."""
        self._changes = 0

    def put(self, candidate: Candidate, sessions: int) -> None:
        """Add or replace an endpoint that takes work."""
        id = candidate.endpoint.id
        before = self._candidates.get(id)
        if before is None or before.node != candidate.node:
            self.drop(id)
            self._nodes[candidate.node] = (*self._nodes.get(candidate.node, ()), id)
        self._candidates[id] = candidate
        self.set_sessions(id, sessions)

    def set_sessions(self, id: str, sessions: int) -> None:
        """Set its number of live sessions; no effect where it takes no work."""
        candidate = self._candidates.get(id)
        if candidate is None:
            return
        self._invalidate(id)
        if not candidate.admits(sessions):
            return
        mark = self._entries[id] = _Entry(candidate, sessions)
        heapq.heappush(self._heap, _heap_item(mark))
        if len(self._heap) > STALE * len(self._entries) + FEW:
            self._heap = [entry for entry in self._heap if entry[3].ended == math.inf]
            heapq.heapify(self._heap)

    def drop(self, id: str) -> None:
        """Remove an endpoint that takes no work now."""
        candidate = self._candidates.pop(id, None)
        if candidate is None:
            return
        self._invalidate(id)
        left = tuple(other for other in self._nodes[candidate.node] if other != id)
        if left:
            self._nodes[candidate.node] = left
        else:
            del self._nodes[candidate.node]

    def selector(self) -> EndpointSelector:
        """Selector of the present state, for one burst of checkouts."""
        return EndpointSelector(self, self._heap.copy(), self._changes)

    def entry(self, id: str) -> _Entry | None:
        return self._entries.get(id)

    def on_node(self, node: str) -> Sequence[str]:
        return self._nodes.get(node, ())

    def _invalidate(self, id: str) -> None:
        mark = self._entries.pop(id, None)
        if mark is not None:
            self._changes += 1
            mark.ended = self._changes


_numbers = itertools.count()


def _heap_item(mark: _Entry) -> _HeapItem:
    return mark.load, random.random(), next(_numbers), mark
