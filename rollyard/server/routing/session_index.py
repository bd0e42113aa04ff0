"""Live sessions on each endpoint: sessions of leased rollouts, and sessions of external agents.

All decisions that need a number of sessions use this index.
"""

from __future__ import annotations

from rollyard.core.aio import Signal
from rollyard.kinds.rollout import RolloutKey

Session = RolloutKey | str
"""A rollout's key, or the id of an external agent's session."""


class SessionIndex:
    """Index of live sessions. `Leases` pins the sessions of rollouts, `ExternalPlacement` those of external agents."""

    def __init__(self) -> None:
        self._endpoints: dict[Session, frozenset[str]] = {}
        self._sessions: dict[str, dict[Session, None]] = {}
        """Endpoint id -> sessions on this endpoint, the newest last."""
        self.sessions_changed = Signal[str]()
        """Signal: the number of sessions on this endpoint changed."""

    def pin(self, session: Session, endpoints: frozenset[str]) -> None:
        """Set the endpoints that the session uses, one for each role. Pass an empty set for a session that has
        ended."""
        before = self._endpoints.pop(session, frozenset())
        if endpoints:
            self._endpoints[session] = endpoints
        for endpoint in before - endpoints:
            there = self._sessions[endpoint]
            del there[session]
            if not there:
                del self._sessions[endpoint]
            self.sessions_changed.emit(endpoint)
        for endpoint in endpoints - before:
            self._sessions.setdefault(endpoint, {})[session] = None
            self.sessions_changed.emit(endpoint)

    def endpoints_of(self, session: Session) -> frozenset[str]:
        return self._endpoints.get(session, frozenset())

    def on(self, endpoint: str) -> list[Session]:
        """Return the sessions on an endpoint, the newest first."""
        return list(reversed(self._sessions.get(endpoint, {})))

    def count(self, endpoint: str) -> int:
        return len(self._sessions.get(endpoint, ()))

    def counts(self) -> dict[str, int]:
        """Endpoint id -> number of sessions on this endpoint."""
        return {endpoint: len(there) for endpoint, there in self._sessions.items()}
