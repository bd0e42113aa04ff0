"""The choice of an endpoint: the least load first, where load is live sessions per capacity; ties by chance.

`EndpointOrder` is kept in order one endpoint at a time, as leases and heartbeats move; it counts nothing itself. A heap is
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

from rollyard.server.routing.admission import OPEN, Admission
from rollyard.wire.endpoint import Endpoint

BEGUN = 2.0
"""What a session counts more than others in the burst that begins it."""
NEAR = 0.125
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
    admission: Admission = OPEN

    def takes(self, sessions: int) -> bool:
        return self.admission.takes(sessions)

    def load(self, sessions: float) -> float:
        """With one session more. An idle endpoint counts in full: somebody has to be the first."""
        return (sessions + 1) / (self.capacity * (self.share if sessions else 1.0))


class _Mark:
    """One endpoint with so many sessions, from when that became true until it is no more."""

    __slots__ = ("begun", "candidate", "ended", "load", "sessions")

    def __init__(self, candidate: Candidate, sessions: int, begun: int = 0) -> None:
        self.candidate = candidate
        self.sessions = sessions
        self.begun = begun
        """Of them, how many a burst has put there: their prompts all come at once."""
        self.load = candidate.load(sessions + BEGUN * begun)
        self.ended: float = math.inf
        """The order's count of changes at which it was not true any more."""

    @property
    def one_less(self) -> float:
        """The load that it would be with one session less."""
        return self.candidate.load(max(0, self.sessions + BEGUN * self.begun - 1))


_Entry = tuple[float, float, int, _Mark]
"""(load, chance, number, mark): in the order of heaps; the number keeps marks from being compared."""


class EndpointHeap:
    """For one burst of checkouts; made by `EndpointOrder.heap`. It may be used in another thread."""

    def __init__(self, order: EndpointOrder, heap: list[_Entry], changes: int) -> None:
        self._order = order
        self._heap = heap
        self._changes = changes
        """The order's, when this was made: what ended later still holds here."""
        self._own: dict[str, _Mark | None] = {}
        """What this burst has made of endpoints; None for one that is full."""

    def checkout(
        self, *, node: str = "", warm: Sequence[str] = (), allow: Callable[[Endpoint], bool] | None = None
    ) -> Endpoint | None:
        """The endpoint with the least load of those allowed, which then counts one more; None when there is none.

        Those of `warm`, which have a part of its prompt in their caches, go first, and after them those on `node`, as long
        as they have at most one session more than the best, and that is no more than NEAR of the load: a prefix and a
        short way are worth that, and no more.
        """
        best = self._best(allow)
        if best is None:
            return None
        load, mark = best[0], best[3]
        near = self._near(load, warm, allow) if warm else None
        if near is None and node:
            near = self._near(load, self._order.on(node), allow)
        return self._take(near or mark)

    def _best(self, allow: Callable[[Endpoint], bool] | None) -> _Entry | None:
        """The first that holds and is allowed; it stays where it is."""
        passed: list[_Entry] = []
        heap, found = self._heap, None
        while heap:
            entry = heap[0]
            if not self._holds(entry[3]):
                heapq.heappop(heap)
            elif allow is None or allow(entry[3].candidate.endpoint):
                found = entry
                break
            else:
                passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _holds(self, mark: _Mark) -> bool:
        id = mark.candidate.endpoint.id
        return self._own[id] is mark if id in self._own else mark.ended > self._changes

    def _near(self, best: float, ids: Sequence[str], allow: Callable[[Endpoint], bool] | None) -> _Mark | None:
        """The least loaded of these that is hardly worse than the best."""
        found, least = None, best * (1 + NEAR)
        for id in ids:
            mark = self._own[id] if id in self._own else self._order.mark(id)
            if mark is None or mark.load > least or (found is not None and mark.load == least):
                continue
            if (mark.load <= best or mark.one_less <= best) and (allow is None or allow(mark.candidate.endpoint)):
                found, least = mark, mark.load
        return found

    def _take(self, mark: _Mark) -> Endpoint:
        candidate, sessions = mark.candidate, mark.sessions + 1
        endpoint = candidate.endpoint
        if candidate.takes(sessions):
            more = self._own[endpoint.id] = _Mark(candidate, sessions, mark.begun + 1)
            heapq.heappush(self._heap, _entry(more))
        else:
            self._own[endpoint.id] = None
        return endpoint


class EndpointOrder:
    """The endpoints of one pool that take work, in order; told of each change, one endpoint at a time."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._marks: dict[str, _Mark] = {}
        self._heap: list[_Entry] = []
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
        self.count(id, sessions)

    def count(self, id: str, sessions: int) -> None:
        """So many live sessions are on it now; of no interest where it takes no work."""
        candidate = self._candidates.get(id)
        if candidate is None:
            return
        self._end(id)
        if not candidate.takes(sessions):
            return
        mark = self._marks[id] = _Mark(candidate, sessions)
        heapq.heappush(self._heap, _entry(mark))
        if len(self._heap) > STALE * len(self._marks) + FEW:
            self._heap = [entry for entry in self._heap if entry[3].ended == math.inf]
            heapq.heapify(self._heap)

    def drop(self, id: str) -> None:
        """It takes no work now."""
        candidate = self._candidates.pop(id, None)
        if candidate is None:
            return
        self._end(id)
        left = tuple(other for other in self._nodes[candidate.node] if other != id)
        if left:
            self._nodes[candidate.node] = left
        else:
            del self._nodes[candidate.node]

    def heap(self) -> EndpointHeap:
        """As it is now, for one burst of checkouts."""
        return EndpointHeap(self, self._heap.copy(), self._changes)

    def mark(self, id: str) -> _Mark | None:
        return self._marks.get(id)

    def on(self, node: str) -> Sequence[str]:
        return self._nodes.get(node, ())

    def _end(self, id: str) -> None:
        mark = self._marks.pop(id, None)
        if mark is not None:
            self._changes += 1
            mark.ended = self._changes


_numbers = itertools.count()


def _entry(mark: _Mark) -> _Entry:
    return mark.load, random.random(), next(_numbers), mark
