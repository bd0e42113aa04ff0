"""Moves live sessions away from endpoints that are out (ejected, silent or unhealthy), that drain, or that have too
many sessions.

The rebalancer only requests a move. The new endpoint is chosen and recorded later, when the session's node agent or
gateway asks for it. Until then the session counts on its old endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

from rollyard.core.aio import Waker
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.routing.endpoint_choice import EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.session_index import Session, SessionIndex
from rollyard.server.routing.surplus_sessions import to_move

log = logging.getLogger(__name__)

ROUND_SECONDS, URGENT_ROUND_SECONDS = 5.0, 1.0
"""Seconds between two rounds. The shorter time applies while an endpoint with sessions is out."""


class Rebalancer:
    """Requests moves of sessions: at intervals, and immediately after a change of an endpoint."""

    def __init__(
        self,
        endpoints: EndpointRegistry,
        choice: EndpointChoice,
        sessions: SessionIndex,
        ask_rollout: Callable[[RolloutKey, str, bool], bool],
        ask_external: Callable[[str, str, bool], bool],
    ) -> None:
        """`ask_…` requests a move, and returns whether the request was sent. The arguments are a session, the endpoint
        to leave, and whether the move is urgent because the endpoint is out."""
        self._endpoints = endpoints
        self._choice = choice
        self._sessions = sessions
        self._ask_rollout, self._ask_external = ask_rollout, ask_external
        self.waker = Waker()
        self._stuck: set[str] = set()
        """Endpoints that are out, and whose sessions wait because no other endpoint is ready."""

    async def run(self) -> None:
        """Rebalance for ever."""
        while True:
            await self.waker.pause(URGENT_ROUND_SECONDS if self.stranded() else ROUND_SECONDS)
            self.rebalance()
            await asyncio.sleep(0.1)  # endpoints that change close together are handled together

    def rebalance(self) -> None:
        """Run one round."""
        stranded = self.stranded()
        for endpoint, elsewhere in stranded.items():
            there = self._sessions.on(endpoint)
            if elsewhere and (asked := sum(self._ask(session, endpoint, True) for session in there)):
                log.info("endpoint %s is down: asked %d of its sessions to move at once", endpoint, asked)
            elif not elsewhere and endpoint not in self._stuck:
                log.warning(
                    "%d sessions wait on endpoint %s, which is down: no other endpoint is ready", len(there), endpoint
                )
        self._stuck = {endpoint for endpoint, elsewhere in stranded.items() if not elsewhere}
        for endpoint, surplus in self.to_move().items():
            asked_ones = (session for session in self._sessions.on(endpoint) if self._ask(session, endpoint, False))
            if asked := len(list(islice(asked_ones, surplus))):
                log.info("asked %d of the sessions on endpoint %s to move to another one", asked, endpoint)

    def ask_all(self, endpoint: str) -> None:
        """Ask the sessions on an endpoint to choose again before their next turn. They stay, and get its new token."""
        asked = sum(self._ask(session, endpoint, False) for session in self._sessions.on(endpoint))
        log.info("endpoint %s has a new token: asked %d of its sessions to get it", endpoint, asked)

    def to_move(self) -> dict[str, int]:
        """Endpoint id -> number of live sessions that should leave the endpoint, for the endpoints of all pools."""
        moves: dict[str, int] = {}
        for pool in {state.pool for state in self._endpoints.all()}:
            moves |= to_move(self._choice.shares(pool))
        return moves

    def stranded(self) -> dict[str, bool]:
        """Endpoint id -> whether another endpoint of the pool takes work, for endpoints that are out and have sessions."""
        out = [s for s in self._endpoints.all() if s.is_out and self._sessions.count(s.endpoint.id)]
        return {s.endpoint.id: any(other.is_accepting for other in self._endpoints.of_pool(s.pool)) for s in out}

    def _ask(self, session: Session, endpoint: str, urgent: bool) -> bool:
        if isinstance(session, str):
            return self._ask_external(session, endpoint, urgent)
        return self._ask_rollout(session, endpoint, urgent)
