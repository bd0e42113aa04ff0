"""Endpoints for the sessions of external agents, from the registry that serves rollouts too."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.staleness import ServedVersions, why_none
from rollyard.wire.endpoint import Endpoint


class SessionPlacement:
    """`least`: oldest version of the weights that a session may sample from, None for any."""

    def __init__(self, endpoints: EndpointRegistry) -> None:
        self._endpoints = endpoints

    def choose(self, pool: PoolKey, least: str | None) -> Endpoint | None:
        """Endpoint for a session that opens; None when none is ready and has room."""
        return self._endpoints.index_snapshot(pool).checkout(allow=self._allowed_versions(pool, least))

    def choose_again(self, pool: PoolKey, current: str, failed: str, least: str | None) -> Endpoint | None:
        return self._endpoints.choose_again(pool, current, failed, "", self._allowed_versions(pool, least))

    def why_none(self, pool: PoolKey, least: str | None) -> str:
        """Reason why there is none."""
        ready = frozenset(self._endpoints.versions(pool, ready=True).values())
        served = ServedVersions(self._endpoints.weights(pool), ready=ready)
        if least is not None and least not in served.minimum_versions:
            return why_none(pool.name, least, served)
        return f"no endpoint of InferencePool {pool.name} is ready and has a free place"

    def stranded(self) -> Mapping[str, bool]:
        return self._endpoints.stranded()

    def is_out(self, endpoint: str) -> bool:
        state = self._endpoints.get(endpoint)
        return state is not None and state.is_out

    def complain(self, endpoint: str, session: str, why: str) -> None:
        self._endpoints.complain(endpoint, f"session {session}", why)

    def to_move(self) -> Mapping[str, int]:
        return self._endpoints.to_move()

    def _allowed_versions(self, pool: PoolKey, least: str | None) -> Callable[[Endpoint], bool] | None:
        if least is None:
            return None
        weights = self._endpoints.weights(pool)
        return lambda endpoint: weights.at_least(endpoint.weights_version, least)
