"""Blobs in packs (files with many blobs): their reading, and the removal of those that are no longer needed.

A pass over the loose packs (see `pruning`) deletes packs that have long been unused, and compacts packs with little
needed data.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from rollyard.core.clock import Clock
from rollyard.core.errors import Unavailable
from rollyard.store import pruning
from rollyard.store.base import BlobRef
from rollyard.store.blobs import delete_pack, pack_size, read_blob
from rollyard.store.pruning import LoosePack, StoredBlob
from rollyard.store.read_connections import Readers
from rollyard.store.writer import Writer

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
"""Threads that read results. Many readers of large results delay each other, and nothing else."""
COMPACT_BELOW = 0.5
"""A pack is compacted if less than this share of its bytes is needed: when its artifacts are deleted before its results,
its results alone may be a third of it."""
MOVED_BYTES = 4 << 20
"""When at least this many bytes of blobs are collected, one transaction moves them. Other writes can run between two
such transactions."""


class PackStore:
    def __init__(self, folder: Path, readers: Readers, writer: Writer, clock: Clock) -> None:
        self._folder = folder
        self._readers = readers
        self._writer = writer
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, "packs")

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def read(self, ref: BlobRef) -> bytes:
        """Read a blob and check its digest. Raises Unavailable if the blob is missing or damaged."""
        return await self.use([ref], lambda blobs: blobs[0])

    async def use(self, refs: Sequence[BlobRef], use: Callable[[list[bytes]], T]) -> T:
        """Read blobs as `read` does; return `use(blobs)`. Both run in one thread, because each further hop from
        thread to thread would take as long as the reading of a small blob."""
        # This does not run in a thread of `_readers`, because a large answer would keep a connection from other queries.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: use([read_blob(self._folder, ref) for ref in refs]))

    async def reclaim(self, kept_seconds: float) -> int:
        """Free the space of deleted results; return the number of bytes freed.

        A pack is kept for `kept_seconds` after it was found unused. Raises Unavailable if the disk or the database
        fails. A later call then continues.
        """
        current, freed, now = self._writer.pack_name, 0, self._clock.time()
        for pack in await self._readers.call(pruning.loose_packs):
            if pack.name != current:  # the pack in use has no final size yet
                try:
                    freed += await self._step(pack, now, kept_seconds)
                except OSError as error:
                    raise Unavailable(f"pack {pack.name} cannot be deleted: {error.strerror}") from None
        return freed

    async def _step(self, pack: LoosePack, now: float, kept_seconds: float) -> int:
        size = await self._readers.call(lambda _: pack_size(self._folder, pack.name))
        if pack.needed_bytes and size:
            if pack.needed_bytes < COMPACT_BELOW * size:
                await self._compact(pack.name)
            return 0
        if pack.unused_since is None and size:
            await self._writer.call(partial(pruning.set_unused_since, pack=pack.name, at=now))
            return 0
        if pack.unused_since is not None and now - pack.unused_since < kept_seconds and size:
            return 0
        await self._readers.call(lambda _: delete_pack(self._folder, pack.name))
        await self._writer.call(partial(pruning.forget_pack, pack=pack.name))
        return size

    async def _compact(self, pack: str) -> None:
        blobs = await self._readers.call(partial(pruning.blobs_in, pack=pack))
        for some in _portions(blobs):
            try:
                read = await self._readers.call(partial(self._read, blobs=some))
            except Unavailable as error:
                log.error("pack %s is kept as it is: %s", pack, error)
                return
            moved = list(zip(some, read, strict=True))
            await self._writer.call(partial(pruning.move_blobs, moved=moved))

    def _read(self, _: sqlite3.Connection, blobs: Sequence[StoredBlob]) -> list[bytes]:
        return [read_blob(self._folder, one.ref) for one in blobs]


def _portions(blobs: Sequence[StoredBlob]) -> Iterator[list[StoredBlob]]:
    some: list[StoredBlob] = []
    size = 0
    for one in blobs:
        some.append(one)
        size += one.ref.length
        if size >= MOVED_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
