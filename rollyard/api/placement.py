"""Where the sessions of outside agents sample: by the registry that rollouts are placed by."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.inference.endpoints import Endpoints
from rollyard.inference.state import PoolKey
from rollyard.kinds.wire import Endpoint


class SessionPlacement:
    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def first(self, pool: PoolKey) -> Endpoint | None:
        """For a session that opens; None when no endpoint is ready and has room."""
        return self._endpoints.heap(pool).checkout()

    def another(self, pool: PoolKey, current: str, failed: str) -> Endpoint | None:
        return self._endpoints.another(pool, current, failed, node="")

    def complain(self, endpoint: str, session: str, why: str) -> None:
        self._endpoints.complain(endpoint, f"session {session}", why)

    def to_move(self) -> Mapping[str, int]:
        return self._endpoints.to_move()
