"""The writer: a thread that owns the writing connection. The waiting changes, at most MAX_BATCH, are committed together
as one batch.

Each change runs in a savepoint, so only the change that raises is undone. If the disk fails, all changes of the batch
are undone, and each caller gets the error. The next batch starts normally. After another server has begun a later
epoch, all writes are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from rollyard.core.errors import Superseded, Unavailable
from rollyard.store.blobs import PackWriter
from rollyard.store.tables import check_epoch
from rollyard.store.watch import WatchEvent

T = TypeVar("T")
MAX_BATCH = 1024


@dataclass(slots=True)
class WriteUnit:
    """Database and packs, to which the changes of a batch write. If a change fails, its writes are undone. The commit
    makes all other writes durable."""

    db: sqlite3.Connection
    packs: PackWriter
    events: list[WatchEvent] = field(default_factory=list)
    """Changes of objects in this batch. Watchers get these changes after the commit."""


@dataclass(slots=True)
class _Request:
    change: Callable[[WriteUnit], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer:
    """Runs changes in order of arrival. After each commit `published` is called on the event loop with the committed
    changes of objects. A call returns only after `published` has been called for its commit."""

    def __init__(self, unit: WriteUnit, epoch: int, published: Callable[[list[WatchEvent]], None]) -> None:
        self._unit = unit
        self._epoch = epoch
        self._published = published
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._closing = False
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def pack_name(self) -> str:
        """Name of the pack to which the next blobs are written. Earlier packs are complete, and the
        rows of their blobs are committed."""
        return self._unit.packs.name

    async def call(self, change: Callable[[WriteUnit], T]) -> T:
        """Run `change` in the writer's thread; return its result after the change is on disk."""
        if self._closing:
            raise Unavailable("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._requests.put(_Request(change, future))
        return cast(T, await future)

    async def close(self) -> None:
        """Finish the earlier calls, then stop the thread."""
        if not self._closing:
            self._closing = True
            self._requests.put(None)
        await self._ended.wait()
        self._thread.join()

    def _main(self) -> None:
        running = True
        while running:
            batch, running = self._next_batch()
            if batch:
                self._commit(batch)
                events, self._unit.events = self._unit.events, []
                self._loop.call_soon_threadsafe(self._publish, batch, events)
        self._unit.packs.close()
        self._unit.db.close()
        self._loop.call_soon_threadsafe(self._ended.set)

    def _next_batch(self) -> tuple[list[_Request], bool]:
        """Wait for a request. Return the waiting requests, at most MAX_BATCH, and whether the thread should continue
        after them."""
        batch: list[_Request] = []
        request = self._requests.get()
        while request is not None:
            if not request.future.cancelled():
                batch.append(request)
            if len(batch) >= MAX_BATCH or self._requests.empty():
                return batch, True
            request = self._requests.get()
        return batch, False

    def _commit(self, batch: list[_Request]) -> None:
        unit = self._unit
        try:
            unit.db.execute("BEGIN IMMEDIATE")
            check_epoch(unit.db, self._epoch)
            for request in batch:
                self._apply(request)
            unit.packs.sync()
            unit.db.execute("COMMIT")
        except Superseded as error:
            self._fail_batch(batch, error)
        except (sqlite3.Error, OSError) as error:
            self._fail_batch(batch, Unavailable(f"nothing was stored: {error}", retry_after=5))
        else:
            unit.packs.keep()

    def _apply(self, request: _Request) -> None:
        unit = self._unit
        blobs, events = unit.packs.mark(), len(unit.events)
        unit.db.execute("SAVEPOINT change")
        try:
            request.result = request.change(unit)
        except Exception as error:
            if storage_failed(error):
                raise
            request.error = error
            unit.db.execute("ROLLBACK TO change")
            unit.packs.cut(blobs)
            del unit.events[events:]
        unit.db.execute("RELEASE change")

    def _fail_batch(self, batch: list[_Request], error: Unavailable) -> None:
        unit = self._unit
        # After some errors (disk full, I/O) SQLite has already rolled back. An error of ROLLBACK is ignored here,
        # because the next BEGIN then fails too.
        with contextlib.suppress(sqlite3.Error):
            if unit.db.in_transaction:
                unit.db.execute("ROLLBACK")
        unit.packs.drop()
        unit.events.clear()
        for request in batch:
            # The batch's error replaces an exception of the change: the change may have read writes that are now
            # undone.
            request.error = error

    def _publish(self, batch: list[_Request], events: list[WatchEvent]) -> None:
        self._published(events)
        for request in batch:
            if request.future.done():
                continue  # the call was cancelled
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                request.future.set_result(request.result)


def storage_failed(error: Exception) -> bool:
    """Whether the database or disk caused the error (disk full, I/O, busy, corrupt), and not the caller's data."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
