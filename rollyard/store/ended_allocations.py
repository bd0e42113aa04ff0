"""Allocations whose jobs have ended. They outlive their objects."""

from __future__ import annotations

import sqlite3
from functools import partial

from rollyard.kinds.usage import EndedAllocation
from rollyard.store.read_connections import Readers
from rollyard.store.writer import Writer, WriteUnit

MAX_KEPT = 100_000
"""Greatest number of ended allocations in the store; the oldest ones are deleted first."""


class EndedAllocationTable:
    """Store of ended allocations. All methods raise Unavailable."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def add(self, ended: EndedAllocation) -> None:
        """Store an ended allocation. A second call for the same allocation replaces the first, so a server that was killed
        after the first call may repeat it."""
        await self._writer.call(partial(_add, ended))

    async def since(self, at: float, namespace: str | None = None, limit: int | None = None) -> list[EndedAllocation]:
        """Return the allocations that ended at this time or later (Unix seconds), newest first."""
        return await self._readers.call(partial(since, at=at, namespace=namespace, limit=limit), costly=True)


def _add(ended: EndedAllocation, unit: WriteUnit) -> None:
    unit.db.execute("DELETE FROM ended_allocations WHERE uid = ?", (ended.uid,))
    values = (ended.uid, ended.namespace, ended.ended_at, ended.model_dump_json())
    unit.db.execute("INSERT INTO ended_allocations (uid, namespace, ended_at, body) VALUES (?, ?, ?, ?)", values)
    last = "SELECT max(seq) FROM ended_allocations"
    unit.db.execute(f"DELETE FROM ended_allocations WHERE seq <= ({last}) - ?", (MAX_KEPT,))


def since(db: sqlite3.Connection, at: float, namespace: str | None, limit: int | None) -> list[EndedAllocation]:
    where, values = ("AND namespace = ?", [namespace]) if namespace is not None else ("", [])
    rows = db.execute(
        "SELECT body FROM ended_allocations INDEXED BY ended_allocations_by_time WHERE ended_at >= ? "
        f"{where} ORDER BY ended_at DESC, seq DESC LIMIT ?",
        (at, *values, -1 if limit is None else limit),
    )
    return [EndedAllocation.model_validate_json(body, extra="ignore") for (body,) in rows]
