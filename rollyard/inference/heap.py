"""The choice of an endpoint: the fewest live sessions first, ties by chance.

The counts come from the set of live leases each time a heap is built; nothing is counted apart, so nothing can drift.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping

from rollyard.kinds.wire import Endpoint


class EndpointHeap:
    """A min-heap over ready endpoints for a burst of checkouts."""

    def __init__(self, endpoints: Iterable[Endpoint], sessions: Mapping[str, int]) -> None:
        self._heap = [(sessions.get(e.id, 0), random.random(), e) for e in endpoints]
        heapq.heapify(self._heap)

    def checkout(self, *, allow: Callable[[Endpoint], bool] | None = None) -> Endpoint | None:
        """The endpoint with the fewest sessions of those allowed, which then counts one more; None when there is none."""
        passed: list[tuple[int, float, Endpoint]] = []
        try:
            while self._heap:
                sessions, _, endpoint = self._heap[0]
                if allow is None or allow(endpoint):
                    heapq.heapreplace(self._heap, (sessions + 1, random.random(), endpoint))
                    return endpoint
                passed.append(heapq.heappop(self._heap))
            return None
        finally:
            for entry in passed:
                heapq.heappush(self._heap, entry)
