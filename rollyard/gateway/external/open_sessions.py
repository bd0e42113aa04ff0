"""Open sessions of outside agents, indexed by the endpoint that they are on."""

from __future__ import annotations

from rollyard.core.aio import Signal


class OpenSessions:
    """Index that `ExternalSessions` maintains; a separate class, because the endpoint registry is made first and reads it."""

    def __init__(self) -> None:
        self._on: dict[str, set[str]] = {}
        """Endpoint id -> ids of its sessions."""
        self.sessions_changed = Signal[str]()
        """The number of sessions on this endpoint changed."""

    def count(self, endpoint: str) -> int:
        return len(self._on.get(endpoint, ()))

    def by_endpoint(self) -> dict[str, int]:
        """Endpoint id -> number of open sessions; may be called from any thread."""
        return {endpoint: len(there) for endpoint, there in list(self._on.items()) if there}

    def is_on(self, id: str, endpoint: str) -> bool:
        return id in self._on.get(endpoint, ())

    def place(self, id: str, endpoint: str) -> None:
        self._on.setdefault(endpoint, set()).add(id)
        self.sessions_changed.emit(endpoint)

    def leave(self, id: str, endpoint: str) -> None:
        there = self._on[endpoint]
        there.discard(id)
        if not there:
            del self._on[endpoint]
        self.sessions_changed.emit(endpoint)
