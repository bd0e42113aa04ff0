"""Live sessions on each endpoint: of rollouts (from their leases) and of external agents. All decisions use this count."""

from __future__ import annotations

from rollyard.core.aio import Signal
from rollyard.kinds.rollout import RolloutKey

Session = RolloutKey | str
"""A rollout's key, or the id of an external agent's session."""


class SessionIndex:
    """Index of live sessions. Only `Leases` and `ExternalPlacement` pin sessions here, each its own."""

    def __init__(self) -> None:
        self._endpoints: dict[Session, frozenset[str]] = {}
        self._sessions: dict[str, dict[Session, None]] = {}
        """Endpoint id -> its sessions, in the order in which they came there."""
        self.sessions_changed = Signal[str]()
        """Signal: the number of sessions on this endpoint changed."""

    def pin(self, session: Session, endpoints: frozenset[str]) -> None:
        """Set the endpoints that the session is on, one for each role; none if it has ended."""
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
        """Return the sessions on an endpoint; the one that came there last is first."""
        return list(reversed(self._sessions.get(endpoint, {})))

    def count(self, endpoint: str) -> int:
        return len(self._sessions.get(endpoint, ()))

    def counts(self) -> dict[str, int]:
        """Endpoint id -> number of its sessions."""
        return {endpoint: len(there) for endpoint, there in self._sessions.items()}
