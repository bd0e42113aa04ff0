"""The choice of an endpoint: the least load first, where load is live sessions per capacity; ties by chance.

`EndpointOrder` is kept in order one endpoint at a time, as leases and heartbeats move; it counts nothing itself. A heap is
a copy of it for one burst of checkouts: what the burst takes counts in the copy alone until it is in the leases, so a
burst that is not stored has never happened.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from rollyard.kinds.wire import Endpoint

SLACK = 64
"""Stale entries that a heap may hold beside as many as it has endpoints."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that takes new work."""

    endpoint: Endpoint
    node: str = ""
    capacity: float = 1.0
    """Beside the others of its pool, such as GPUs; above 0."""
    share: float = 1.0
    """Of its capacity, what it may have of the load now: below 1 while it starts slowly."""
    limit: int | None = None
    """Most live sessions for now; None for no limit."""

    def takes(self, sessions: int) -> bool:
        """Whether one more is admitted; to an idle one always, so that nothing waits for ever."""
        return self.limit is None or sessions < self.limit or sessions == 0

    def load(self, sessions: int) -> float:
        """With one session more. An idle endpoint counts in full: somebody has to be the first."""
        return (sessions + 1) / (self.capacity * (self.share if sessions else 1.0))


_Entry = tuple[float, float, str, int, Candidate]
"""(load, chance, endpoint id, sessions, candidate)."""


def _entry(candidate: Candidate, sessions: int) -> _Entry:
    return candidate.load(sessions), random.random(), candidate.endpoint.id, sessions, candidate


class EndpointHeap:
    """For one burst of checkouts; made by `EndpointOrder.heap`."""

    def __init__(self, heap: list[_Entry], current: dict[str, _Entry], nodes: dict[str, tuple[str, ...]]) -> None:
        self._heap = heap
        """May hold stale entries; one is good as long as it is its endpoint's current one."""
        self._current = current
        self._nodes = nodes

    def checkout(
        self, *, node: str = "", before: str = "", allow: Callable[[Endpoint], bool] | None = None
    ) -> Endpoint | None:
        """The endpoint with the least load of those allowed, which then counts one more; None when there is none.

        `before`, the one that the rollout had, and those on `node` go first as long as they have at most one session more
        than the best: a warm prefix and a short way are worth that, and no more.
        """
        best = self._best(allow)
        if best is None:
            return None
        entry = self._near(best, (before,), allow) or self._near(best, self._nodes.get(node, ()), allow) or best
        self._take(entry)
        return entry[4].endpoint

    def _best(self, allow: Callable[[Endpoint], bool] | None) -> _Entry | None:
        """The first that is current and allowed; it stays where it is."""
        passed: list[_Entry] = []
        heap, found = self._heap, None
        while heap:
            entry = heap[0]
            if self._current.get(entry[2]) is not entry:
                heapq.heappop(heap)
            elif allow is None or allow(entry[4].endpoint):
                found = entry
                break
            else:
                passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _near(self, best: _Entry, ids: tuple[str, ...], allow: Callable[[Endpoint], bool] | None) -> _Entry | None:
        """The least loaded of these that is no more than one session worse than the best."""
        found: _Entry | None = None
        for id in ids:
            entry = self._current.get(id)
            if (
                entry is None
                or (found is not None and entry >= found)
                or not (allow is None or allow(entry[4].endpoint))
            ):
                continue
            load, _, _, sessions, candidate = entry
            if load <= best[0] or (sessions and candidate.load(sessions - 1) <= best[0]):
                found = entry
        return found

    def _take(self, entry: _Entry) -> None:
        _, _, id, sessions, candidate = entry
        if candidate.takes(sessions + 1):
            fresh = self._current[id] = _entry(candidate, sessions + 1)
            heapq.heappush(self._heap, fresh)
        else:
            del self._current[id]


class EndpointOrder:
    """The endpoints of one pool that take work, in order; told of each change, one endpoint at a time."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._current: dict[str, _Entry] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Replaced, never changed: a heap may be read in another thread."""

    def put(self, candidate: Candidate, sessions: int) -> None:
        """This is what there is to say of it now."""
        id = candidate.endpoint.id
        before = self._current.get(id)
        if before is not None and before[4].node != candidate.node:
            self.drop(id)
        if not candidate.takes(sessions):
            self.drop(id)
            return
        entry = self._current[id] = _entry(candidate, sessions)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._current) + SLACK:
            self._heap = list(self._current.values())
            heapq.heapify(self._heap)
        if candidate.node and id not in self._nodes.get(candidate.node, ()):
            self._nodes[candidate.node] = (*self._nodes.get(candidate.node, ()), id)

    def drop(self, id: str) -> None:
        """It takes nothing now."""
        entry = self._current.pop(id, None)
        if entry is not None and (node := entry[4].node):
            self._nodes[node] = tuple(other for other in self._nodes[node] if other != id)
            if not self._nodes[node]:
                del self._nodes[node]

    def heap(self) -> EndpointHeap:
        """As it is now, for one burst of checkouts."""
        return EndpointHeap(self._heap.copy(), self._current.copy(), self._nodes)
