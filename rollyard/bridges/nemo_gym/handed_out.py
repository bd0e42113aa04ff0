"""Rows whose results were handed out, in a file. It tells a row that is sent again from a row that is collected again.

NeMo Gym sends a row again after a broken connection, and it sends the same row for a new collection, for example after
the next training step. Nothing in the row tells these apart. The first must get the same rollout, the second a new one.
So each result that is handed out counts up the row's number, and the number is part of the rollout's id.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollyard.core.errors import BadRequest, Unavailable


class HandedOut:
    def __init__(self, path: Path) -> None:
        """Open the file, or make it. Raises BadRequest if that is impossible. Blocks."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)
            self._file.execute("PRAGMA synchronous=FULL")
            self._file.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, times INTEGER NOT NULL)")
            self._file.execute(f"PRAGMA user_version = {time.time_ns() % 2**31}")  # fails if the file cannot be written
        except (OSError, sqlite3.Error) as error:
            raise BadRequest(
                f"cannot use {path} to remember which results were handed out: {error}; name another file with --state"
            ) from None
        self._path, self._lock = path, threading.Lock()

    def close(self) -> None:
        self._file.close()

    async def times(self, key: str) -> int:
        """Return how often results of this row were handed out. Raises Unavailable if the file cannot be read."""
        return await asyncio.to_thread(self._times, key)

    async def set_times(self, key: str, times: int) -> None:
        """Store the number on disk, unless a greater one is stored. Raises Unavailable if that is impossible."""
        await asyncio.to_thread(self._set_times, key, times)

    def _times(self, key: str) -> int:
        with self._usable():
            found = self._file.execute("SELECT times FROM rows WHERE key = ?", (key,)).fetchone()
        return int(found[0]) if found else 0

    def _set_times(self, key: str, times: int) -> None:
        with self._usable():
            self._file.execute(
                "INSERT INTO rows VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET times = max(times, excluded.times)",
                (key, times),
            )

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise Unavailable(f"cannot use {self._path}, which remembers the results handed out: {error}") from None
