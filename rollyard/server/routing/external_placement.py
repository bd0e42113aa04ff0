"""Endpoints for the sessions of external agents, chosen as for rollouts. Sessions of both kinds count together."""

from __future__ import annotations

from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_choice import EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.session_index import SessionIndex
from rollyard.server.routing.staleness import allow_at_least, why_none
from rollyard.wire.endpoint import Endpoint


class ExternalPlacement:
    """Places sessions of external agents. In all methods `least` is the oldest weights version from which a session may
    sample; None for any."""

    def __init__(self, endpoints: EndpointRegistry, choice: EndpointChoice, sessions: SessionIndex) -> None:
        self._endpoints = endpoints
        self._choice = choice
        self._sessions = sessions

    def choose(self, pool: PoolKey, least: str | None) -> Endpoint | None:
        """Return the endpoint for a new session; None if no ready endpoint with allowed weights has room."""
        return self._choice.burst(pool).checkout(allow=allow_at_least(least, self._endpoints.weights(pool)))

    def pin(self, session: str, endpoint: str) -> None:
        """Count an open session on the endpoint."""
        self._sessions.pin(session, frozenset([endpoint]))

    def free(self, session: str) -> None:
        """Stop counting a session, because it is closed."""
        self._sessions.pin(session, frozenset())

    def choose_again(
        self, session: str, pool: PoolKey, current: str, failed: str, least: str | None
    ) -> Endpoint | None:
        """Return the endpoint that the session uses from now on, and count the session on it; None if there is none."""
        allow = allow_at_least(least, self._endpoints.weights(pool))
        found = self._choice.choose_again(pool, current, failed, allow=allow)
        if found is not None and self._sessions.endpoints_of(session):  # a closed session counts on no endpoint
            self.pin(session, found.id)
        return found

    def why_none(self, pool: PoolKey, least: str | None) -> str:
        """Return why there is no endpoint for a session with this `least`."""
        served = self._endpoints.served_versions(pool)
        if least is not None and least not in served.minimum_versions:
            return why_none(pool.name, least, served)
        return f"no endpoint of InferencePool {pool.name} is ready and has a free place"

    def is_out(self, endpoint: str) -> bool:
        state = self._endpoints.get(endpoint)
        return state is not None and state.is_out

    def complain(self, endpoint: str, session: str, why: str) -> None:
        self._endpoints.complain(endpoint, f"session {session}", why)
