"""Where the sessions of outside agents sample: by the registry and the counts that rollouts are placed by."""

from __future__ import annotations

from rollyard.inference.endpoints import Endpoints, PoolKey
from rollyard.kinds.wire import Endpoint
from rollyard.rollouts.service import Rollouts


class SessionPlacement:
    def __init__(self, endpoints: Endpoints, rollouts: Rollouts) -> None:
        self._endpoints = endpoints
        self._rollouts = rollouts

    async def choose(self, pool: PoolKey, current: str, failed: str) -> Endpoint | None:
        """`current` where it takes work and has not failed, else the one with the fewest live sessions of the others."""
        here = self._endpoints.get(current)
        if not failed and here is not None and here.ready and not here.drain:
            return here.endpoint
        heap = self._endpoints.heap(pool, await self._rollouts.sessions())
        return heap.checkout(allow=lambda endpoint: endpoint.id not in (failed, current))

    def complain(self, endpoint: str, session: str, why: str) -> None:
        self._endpoints.eject(endpoint, f"session {session}: {why}")
