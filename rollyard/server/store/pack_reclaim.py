"""One pass over the loose packs (see `pruning`). Packs that have long been unused are deleted. Packs with little needed
data are compacted."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.server.store import pruning
from rollyard.server.store.blobs import delete_pack, pack_size, read_blob
from rollyard.server.store.pruning import LoosePack, StoredResult
from rollyard.server.store.read_connections import Readers
from rollyard.server.store.writer import Writer

log = logging.getLogger(__name__)

COMPACT_BELOW = 0.25
"""A pack is compacted if less than this share of its bytes is needed. About half of a pack's bytes are results of the
stage RUN, which are needed only until their rollouts end. So with a limit above one half, most packs would be
compacted, and most final results would be written twice. A low limit wastes little space, because most final results in
a pack expire at about the same time."""
MOVED_BYTES = 4 << 20
"""When at least this many bytes of results are collected, one transaction moves them. Other writes can run between two
such transactions."""


class PackReclaim:
    def __init__(self, folder: Path, readers: Readers, writer: Writer) -> None:
        self._folder = folder
        self._readers = readers
        self._writer = writer

    async def run(self, now: float, kept_seconds: float) -> int:
        """Make one pass; return the number of bytes freed. `kept_seconds`: time for which an unused pack is kept.

        Raises Unavailable if the disk or the database fails. A later pass then continues.
        """
        current, freed = self._writer.pack_name, 0
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
        results = await self._readers.call(partial(pruning.results_in, pack=pack))
        for some in _portions(results):
            try:
                read = await self._readers.call(partial(self._read, results=some))
            except Unavailable as error:
                log.error("pack %s is kept as it is: %s", pack, error)
                return
            moved = list(zip(some, read, strict=True))
            await self._writer.call(partial(pruning.move_results, moved=moved))

    def _read(self, _: sqlite3.Connection, results: Sequence[StoredResult]) -> list[bytes]:
        return [read_blob(self._folder, one.ref) for one in results]


def _portions(results: Sequence[StoredResult]) -> Iterator[list[StoredResult]]:
    some: list[StoredResult] = []
    size = 0
    for one in results:
        some.append(one)
        size += one.ref.length
        if size >= MOVED_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
