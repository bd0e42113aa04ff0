"""Open sessions of outside agents, by the endpoint that they are on: the same set, seen from the other side."""

from __future__ import annotations

from rollyard.core.aio import Signal


class OpenSessions:
    """Index that `ExternalSessions` maintains; a class of its own, for the endpoint registry is made first and counts by it."""

    def __init__(self) -> None:
        self._on: dict[str, set[str]] = {}
        """Endpoint id -> ids of sessions."""
        self.sessions_changed = Signal[str]()
        """The number of sessions on this endpoint changed."""

    def count(self, endpoint: str) -> int:
        return len(self._on.get(endpoint, ()))

    def by_endpoint(self) -> dict[str, int]:
        """Endpoint id -> open sessions; from any thread."""
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
