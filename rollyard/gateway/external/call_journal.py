"""Calls of one external session on their way to the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rollyard.core.errors import Unavailable
from rollyard.gateway.requests.call_errors import unavailable
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.store.session_tables import SessionTables
from rollyard.trajectory.stored_session import SessionProgress, StoredCallBytes


class StoringJournal:
    """A `CallJournal` that writes to the store. The calls of all sessions that end at the same time share one commit."""

    def __init__(self, store: SessionTables, instance: str, progress: Callable[[], SessionProgress]) -> None:
        self._store = store
        self._instance = instance
        self._progress = progress
        self._calls: deque[StoredCallBytes] = deque()
        self._delivered: list[int] = []

    def add(self, turn: int, call: StoredCall) -> None:
        self._calls.append(StoredCallBytes(turn, call.to_bytes()))

    def note_delivered(self, turn: int) -> None:
        self._delivered.append(turn)

    def take_delivered(self) -> list[tuple[str, int]]:
        """Return the delivered turns since the last call, as (instance, turn)."""
        turns, self._delivered = self._delivered, []
        return [(self._instance, turn) for turn in turns]

    async def flush(self) -> None:
        """Store all added calls, also those whose write failed before. So a stored call never follows a missing one."""
        calls = list(self._calls)
        if not calls:
            return
        try:
            await self._store.append(self._instance, calls, self._progress())
        except Unavailable as error:
            raise unavailable(f"the turn is recorded, but cannot be stored: {error}; repeat the call") from error
        while self._calls and self._calls[0].turn <= calls[-1].turn:
            self._calls.popleft()
