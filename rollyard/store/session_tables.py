"""Sessions of external agents and their calls."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

from rollyard.store.read_connections import Readers
from rollyard.store.writer import Writer, WriteUnit
from rollyard.trajectory.stored_session import SessionProgress, StoredCallBytes, StoredSession

MAX_REMOVED = 10_000
"""Number of removed sessions whose reason is kept."""
_COLUMNS = "instance, id, namespace, pool, request, created_at, model, tokenizer"


class SessionTables:
    """Store of sessions. What a method writes is on disk when the method returns. All methods raise Unavailable."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def load(self) -> tuple[list[StoredSession], dict[str, str]]:
        """Return the sessions in the order in which they were opened, and the ids of the last removed sessions, each with
        the reason."""
        return await self._readers.call(_load)

    async def add(self, session: StoredSession) -> None:
        """Store a new session. Storing it again changes nothing."""
        await self._writer.call(partial(_add, session))

    async def append(self, instance: str, calls: Sequence[StoredCallBytes], progress: SessionProgress) -> None:
        """Store calls. A call that is already stored stays as it is. If the session was removed, nothing is stored."""
        await self._writer.call(partial(_append, instance, calls, progress))

    async def calls(self, instance: str) -> list[StoredCallBytes]:
        """Return the calls of a session in the order of their turns."""
        return await self._readers.call(partial(_calls, instance))

    async def close(self, instance: str) -> None:
        """Store that the session takes no more calls."""
        close = "UPDATE sessions SET state = 'Closed' WHERE instance = ? AND state = 'Open'"
        await self._writer.call(lambda unit: unit.db.execute(close, (instance,)))

    async def remove(self, instance: str, why: str) -> None:
        """Delete a session with its calls, and keep the reason."""
        await self._writer.call(partial(_remove, instance, why))

    async def note(self, idle: Mapping[str, float], delivered: Sequence[tuple[str, int]]) -> None:
        """Store the seconds without use of sessions, and the turns (instance, turn) whose answers were delivered."""
        await self._writer.call(partial(_note, idle, delivered))


def _load(db: sqlite3.Connection) -> tuple[list[StoredSession], dict[str, str]]:
    query = f"SELECT {_COLUMNS}, state, progress, idle_seconds FROM sessions WHERE state <> 'Removed' ORDER BY seq"
    kept = []
    for *columns, state, progress, idle in db.execute(query):
        named = dict(zip(_COLUMNS.split(", "), columns, strict=True))
        progress = SessionProgress(**json.loads(progress))
        kept.append(StoredSession(**named, open=state == "Open", progress=progress, idle_seconds=idle))
    return kept, dict(db.execute("SELECT id, why FROM sessions WHERE state = 'Removed' ORDER BY seq"))


def _add(session: StoredSession, unit: WriteUnit) -> None:
    values = asdict(session)
    columns = [values[name] for name in _COLUMNS.split(", ")]
    unit.db.execute("DELETE FROM sessions WHERE id = ? AND state = 'Removed'", (session.id,))
    unit.db.execute(
        f"INSERT OR IGNORE INTO sessions ({_COLUMNS}, state, progress, idle_seconds) "
        f"VALUES ({', '.join('?' * len(columns))}, 'Open', ?, 0)",
        [*columns, json.dumps(values["progress"])],
    )


def _append(instance: str, calls: Sequence[StoredCallBytes], progress: SessionProgress, unit: WriteUnit) -> None:
    done = unit.db.execute(
        "UPDATE sessions SET progress = ?, idle_seconds = 0 WHERE instance = ? AND state <> 'Removed'",
        (json.dumps(asdict(progress)), instance),
    )
    if done.rowcount:
        rows = [(instance, call.turn, call.delivered, call.body) for call in calls]
        unit.db.executemany("INSERT OR IGNORE INTO session_calls VALUES (?, ?, ?, ?)", rows)


def _calls(instance: str, db: sqlite3.Connection) -> list[StoredCallBytes]:
    found = db.execute("SELECT turn, body, delivered FROM session_calls WHERE instance = ? ORDER BY turn", (instance,))
    return [StoredCallBytes(turn, body, bool(delivered)) for turn, body, delivered in found]


def _remove(instance: str, why: str, unit: WriteUnit) -> None:
    unit.db.execute("DELETE FROM session_calls WHERE instance = ?", (instance,))
    unit.db.execute(
        "UPDATE sessions SET state = 'Removed', why = ?, request = '' WHERE instance = ?",
        (why, instance),
    )
    unit.db.execute(
        "DELETE FROM sessions WHERE seq <= (SELECT seq FROM sessions WHERE state = 'Removed' ORDER BY seq DESC "
        "LIMIT 1 OFFSET ?) AND state = 'Removed'",
        (MAX_REMOVED,),
    )


def _note(idle: Mapping[str, float], delivered: Sequence[tuple[str, int]], unit: WriteUnit) -> None:
    unit.db.executemany(
        "UPDATE sessions SET idle_seconds = ? WHERE instance = ?", [(seconds, one) for one, seconds in idle.items()]
    )
    unit.db.executemany("UPDATE session_calls SET delivered = 1 WHERE instance = ? AND turn = ?", delivered)
