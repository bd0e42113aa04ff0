"""The choice of an endpoint: the least load first, where load is live sessions per capacity; ties by chance.

`EndpointIndex` is kept in order one endpoint at a time, as leases and heartbeats move; it counts nothing itself. A heap is
its state at one moment, for one burst of checkouts: what the burst takes counts in that heap alone until it is in the
leases, so a burst that is not stored has never happened.
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
"""What a session counts more than others in the burst that begins it."""
NEAR_RATIO = 0.125
"""Part of the load that a warm prefix or a short way may cost."""
STALE, FEW = 1.25, 16
"""A heap may be so many times as long as what holds in it, and a little longer where it is short."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that takes new work."""

    endpoint: Endpoint
    node: str = ""
    capacity: float = 1.0
    """Beside the others of its pool, such as GPUs; above 0."""
    share: float = 1.0
    """Of its capacity, what it may have of the load now: below 1 while it starts slowly."""
    admission: Admission = UNLIMITED

    def admits(self, sessions: int) -> bool:
        return self.admission.admits(sessions)

    def load(self, sessions: float) -> float:
        """With one session more. An idle endpoint counts in full: somebody has to be the first."""
        return (sessions + 1) / (self.capacity * (self.share if sessions else 1.0))


class _Entry:
    """One endpoint with so many sessions, from when that became true until it is no more."""

    __slots__ = ("begun", "candidate", "ended", "load", "sessions")

    def __init__(self, candidate: Candidate, sessions: int, begun: int = 0) -> None:
        self.candidate = candidate
        self.sessions = sessions
        self.begun = begun
        """Of them, how many a burst has put there: their prompts all come at once."""
        self.load = candidate.load(sessions + FIRST_STEP * begun)
        self.ended: float = math.inf
        """The order's count of changes at which it was not true any more."""

    @property
    def load_with_one_less(self) -> float:
        """The load that it would be with one session less."""
        return self.candidate.load(max(0, self.sessions + FIRST_STEP * self.begun - 1))


_HeapItem = tuple[float, float, int, _Entry]
"""(load, chance, number, mark): in the order of heaps; the number keeps marks from being compared."""


class EndpointSelector:
    """For one burst of checkouts; made by `EndpointIndex.heap`. It may be used in another thread."""

    def __init__(self, order: EndpointIndex, heap: list[_HeapItem], changes: int) -> None:
        self._order = order
        self._heap = heap
        self._changes = changes
        """The order's, when this was made: what ended later still holds here."""
        self._own: dict[str, _Entry | None] = {}
        """What this burst has made of endpoints; None for one that is full."""

    def checkout(
        self, *, node: str = "", warm: Sequence[str] = (), allow: Callable[[Endpoint], bool] | None = None
    ) -> Endpoint | None:
        """The endpoint with the least load of those allowed, which then counts one more; None when there is none.

        Those of `warm`, which have a part of its prompt in their caches, go first, and after them those on `node`, as long
        as they have at most one session more than the best, and that is no more than NEAR of the load: a prefix and a
        short way are worth that, and no more.
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
        """The first that holds and is allowed; it stays where it is."""
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
        """The least loaded of these that is hardly worse than the best."""
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
    """The endpoints of one pool that take work, in order; told of each change, one endpoint at a time."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._entries: dict[str, _Entry] = {}
        self._heap: list[_HeapItem] = []
        """Of all marks, and of some that have ended."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Node -> endpoints; each replaced, never changed, for a heap may be read in another thread."""
        self._changes = 0

    def put(self, candidate: Candidate, sessions: int) -> None:
        """It takes work, and this is what there is to say of it."""
        id = candidate.endpoint.id
        before = self._candidates.get(id)
        if before is None or before.node != candidate.node:
            self.drop(id)
            self._nodes[candidate.node] = (*self._nodes.get(candidate.node, ()), id)
        self._candidates[id] = candidate
        self.set_sessions(id, sessions)

    def set_sessions(self, id: str, sessions: int) -> None:
        """So many live sessions are on it now; of no interest where it takes no work."""
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
        """It takes no work now."""
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
        """As it is now, for one burst of checkouts."""
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
