"""Read-only connections, used in separate threads. A slow query does not delay the event loop.

In the journal mode WAL, a slow query does not delay the writer. In other modes a commit waits for running queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rollyard.core.errors import Unavailable
from rollyard.store.writer import storage_failed

T = TypeVar("T")
Q = TypeVar("Q")
P = ParamSpec("P")


class Readers:
    """Pool with as many connections as threads, so that every thread finds a free connection."""

    def __init__(self, connections: list[sqlite3.Connection]) -> None:
        self._free: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        for connection in connections:
            self._free.put(connection)
        self._count = len(connections)
        self._costly = asyncio.Semaphore(max(1, self._count // 2))
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="store-reader")
        self._closed = False

    async def call(self, query: Callable[[sqlite3.Connection], T], *, costly: bool = False) -> T:
        """Run a query in a thread. `costly`: its time grows with the number of stored rows. Such queries get half of the
        connections, so that many of them delay no others. Raises Unavailable if the database cannot be read or is closed."""
        if self._closed:
            raise Unavailable("the store is closed")
        async with self._costly if costly else contextlib.nullcontext():
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, query)

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._free.get()
        try:
            return query(connection)
        except sqlite3.Error as error:
            if storage_failed(error):
                raise Unavailable(f"the store cannot be read: {error}", retry_after=5) from None
            raise
        finally:
            self._free.put(connection)

    async def close(self) -> None:
        """Finish the running queries, then close the connections."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
        for _ in range(self._count):
            self._free.get_nowait().close()


class ReadingStore(Generic[Q]):
    """Store whose queries run on the read-only connections. `queries`: class of the queries on one connection."""

    def __init__(self, readers: Readers, queries: Callable[[sqlite3.Connection], Q]) -> None:
        self.readers = readers
        self.queries = queries


def reading(
    query: Callable[Concatenate[Q, P], T], *, costly: bool = False
) -> Callable[Concatenate[ReadingStore[Q], P], Coroutine[Any, Any, T]]:
    """Return a method of a store that runs `query` in a thread, as `Readers.call` does."""

    @wraps(query)
    async def method(store: ReadingStore[Q], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.readers.call(lambda db: query(store.queries(db), *args, **kwargs), costly=costly)

    return method
