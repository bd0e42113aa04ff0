"""`SqliteStore`: the store on one SQLite database, with blobs in pack files beside it.

Objects are read from memory. Rollouts are read through read-only connections in threads. One writer makes all writes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from rollyard.core.clock import Clock, SystemClock, as_datetime
from rollyard.core.errors import NotFound
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.batch import BatchKey
from rollyard.kinds.event import Event
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage, Status
from rollyard.server.store import (
    batch_pruning,
    batch_queries,
    image_holds,
    objects,
    pruning,
    rollout_queries,
    snapshot_table,
    tables,
)
from rollyard.server.store.base import (
    BlobRef,
    ImageHold,
    RolloutFilter,
    RolloutRecord,
    StoredSnapshot,
    Transaction,
    WatchEvent,
)
from rollyard.server.store.batch_pruning import GroupRows
from rollyard.server.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord, TaskHistory
from rollyard.server.store.blobs import read_blob
from rollyard.server.store.database import Database, open_database
from rollyard.server.store.folder_lock import JobRun
from rollyard.server.store.pack_reclaim import PackReclaim
from rollyard.server.store.read_connections import Readers
from rollyard.server.store.rollout_transaction import RolloutTransaction
from rollyard.server.store.session_tables import SessionTables
from rollyard.server.store.watch import Watch, WatchFeed
from rollyard.server.store.writer import Writer, WriteUnit

T = TypeVar("T")
K = TypeVar("K", bound=KindObject)
LOG_CHUNK = 500
PRUNE_CHUNK = 500
DELETED_GROUPS = 16
"""Greatest number of groups whose rollouts one transaction deletes."""


class SqliteStore:
    """A `Store` in a data folder, created with `open`. If two processes have the folder open, only the process that
    opened it later can write."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.epoch = database.epoch
        self.server_id = database.server_id
        self.journal = database.journal
        """Journal mode of the database, chosen for the folder's file system."""
        self._clock = clock
        self._lock = database.lock
        self._blobs = database.blobs
        self._readers = Readers(database.reading)
        self._feed = WatchFeed(database.objects, database.version, database.oldest, self._read_log)
        self._writer = Writer(WriteUnit(database.writing, database.packs), database.epoch, self._feed.publish)
        self.sessions = SessionTables(self._writer, self._readers)
        """Sessions of external agents."""
        self._closed = False

    @classmethod
    async def open(
        cls, folder: Path, clock: Clock | None = None, run: JobRun | None = None, told_epoch: int = 0
    ) -> SqliteStore:
        """Open the folder and create missing files.

        `run`: the run of the Slurm job in which this process runs. The lock of an earlier run is taken over, if its job
        has the same name. `told_epoch`: the newest epoch that other processes know. The new epoch is higher than
        `told_epoch`, even if the database comes from a backup.

        Raises Unavailable if another process uses the folder, if the folder cannot be written, or if this release
        cannot read the database.
        """
        return cls(await asyncio.to_thread(open_database, folder, run, told_epoch), clock or SystemClock())

    async def confirm(self) -> None:
        """Check that the folder still belongs to this process.

        Raises Superseded if a newer server uses the folder, and Unavailable if the database cannot be read or the file
        system has no locks. No error is raised if another process holds the lock.
        """
        if not self._lock.held:
            await asyncio.to_thread(self._lock.acquire)  # the earlier holder may have released the lock by now
        await self._readers.call(lambda db: tables.check_epoch(db, self.epoch))

    async def close(self) -> None:
        """Finish earlier calls, then release the folder."""
        if self._closed:
            return
        self._closed = True
        self._feed.close()
        await self._readers.close()
        await self._writer.close()
        self._lock.release()

    # objects

    async def create(self, obj: K) -> K:
        now = as_datetime(self._clock.time())
        return cast(K, await self._writer.call(lambda unit: objects.create(unit, obj, now)))

    async def get(self, key: ObjectKey, kind: Any = KindObject) -> Any:
        found = self._feed.get(key)
        if found is None:
            raise NotFound(f"{objects.describe(key)} not found")
        if not isinstance(found, kind):
            raise TypeError(f"{key} is a {type(found).__name__}, not a {kind}")
        return found

    async def list_objects(self, kind: str, namespace: str | None = None) -> tuple[list[KindObject], str]:
        return self._feed.of_kind(kind, namespace), str(self._feed.version)

    async def update(self, obj: K, part: Literal["spec", "status"]) -> K:
        return cast(K, await self._writer.call(lambda unit: objects.update(unit, obj, part)))

    async def delete(self, key: ObjectKey, *, uid: str | None = None) -> KindObject:
        now = as_datetime(self._clock.time())
        return await self._writer.call(lambda unit: objects.delete(unit, key, uid, now))

    async def prune_events(self, older_than: float) -> int:
        events = self._feed.of_kind("Event")
        old = [e for e in events if isinstance(e, Event) and e.last_timestamp.timestamp() < older_than]
        pruned = 0
        for start in range(0, len(old), PRUNE_CHUNK):
            chunk = old[start : start + PRUNE_CHUNK]
            pruned += await self._writer.call(partial(objects.delete_unchanged, objects=chunk))
        return pruned

    def watch(self, kind: str | None, since: str) -> AsyncIterator[WatchEvent]:
        return Watch(self._feed, kind, since)

    async def _read_log(self, after: int) -> list[tuple[int, WatchEvent]]:
        return await self._readers.call(lambda db: objects.read_changes(db, after, LOG_CHUNK))

    # rollouts

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        return await self._writer.call(lambda unit: change(RolloutTransaction(unit)))

    async def get_rollout(self, namespace: str, id: str) -> RolloutRecord | None:
        return await self._readers.call(lambda db: rollout_queries.get_rollout(db, namespace, id))

    async def snapshots(self, record: RolloutRecord) -> list[StoredSnapshot]:
        return await self._readers.call(lambda db: snapshot_table.of_last_attempt(db, record))

    async def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        return await self._readers.call(lambda db: rollout_queries.list_rollouts(db, filter))

    async def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None
    ) -> list[RolloutRecord]:
        return await self._readers.call(lambda db: rollout_queries.finished(db, after, limit, namespace, group))

    async def newest_seq(self) -> int:
        return await self._readers.call(rollout_queries.newest_seq)

    async def newest_cursor(self) -> int:
        return await self._readers.call(rollout_queries.newest_cursor)

    async def counts(
        self, namespace: str, pool: str | None = None, group: str | None = None
    ) -> dict[tuple[Stage, Status], int]:
        return await self._readers.call(lambda db: rollout_queries.counts(db, namespace, pool, group))

    async def queue_places(
        self, namespace: str, pool: str, now: float, limit: int, default_image: str = ""
    ) -> dict[Stage, dict[int, int]]:
        return await self._readers.call(
            lambda db: rollout_queries.queue_places(db, namespace, pool, now, limit, default_image)
        )

    async def image_holds(self, pool: PoolKey) -> list[ImageHold]:
        return await self._readers.call(lambda db: image_holds.image_holds(db, pool))

    async def queued_images(self, pool: PoolKey, default_image: str, now: float, limit: int) -> dict[str, int]:
        return await self._readers.call(lambda db: image_holds.queued_images(db, pool, default_image, now, limit))

    async def count_held(self, pool: PoolKey, default_image: str, now: float) -> int:
        return await self._readers.call(lambda db: image_holds.count_held(db, pool, default_image, now))

    async def images_needed(self) -> set[str]:
        return await self._readers.call(rollout_queries.images_needed)

    async def count_queued(self, pool: PoolKey) -> int:
        return await self._readers.call(lambda db: rollout_queries.count_queued(db, pool))

    async def reward_mean(self, namespace: str, pool: str | None = None, group: str | None = None) -> float | None:
        return await self._readers.call(lambda db: rollout_queries.reward_mean(db, namespace, pool, group))

    async def prune_rollouts(self, end_of_life: Callable[[PoolKey], float]) -> int:
        pruned = 0
        for pool in await self._readers.call(pruning.pools_with_ended):
            old = partial(pruning.ended_before, pool=pool, at=end_of_life(pool), limit=pruning.DELETED_ROWS)
            while rows := await self._readers.call(old):
                pruned += await self._writer.call(partial(pruning.delete_ended, rows=rows))
        return pruned

    async def prune_acknowledged(self, before: float) -> int:
        return await self._prune_groups(partial(batch_pruning.acknowledged_before, at=before, limit=DELETED_GROUPS))

    async def _prune_groups(self, find: Callable[[sqlite3.Connection], GroupRows]) -> int:
        pruned = 0
        while groups := await self._readers.call(find):
            pruned += await self._writer.call(partial(batch_pruning.delete_groups, groups=groups))
        return pruned

    async def prune_batches(self, end_of_life: Callable[[PoolKey], float]) -> int:
        pruned = 0
        for pool in await self._readers.call(batch_pruning.pools_with_batches):
            old = partial(batch_queries.ended_before, pool=pool, at=end_of_life(pool), limit=PRUNE_CHUNK)
            while batches := await self._readers.call(old):
                for batch in batches:
                    delivered = partial(batch_pruning.delivered_groups, key=batch.key, limit=DELETED_GROUPS)
                    pruned += await self._prune_groups(delivered)
                    while not await self._writer.call(partial(batch_pruning.delete_batch, batch=batch)):
                        pass  # one call deletes only some of the tasks, so that other writes can run between two calls
        return pruned

    async def reclaim_packs(self, kept_seconds: float) -> int:
        return await PackReclaim(self._blobs, self._readers, self._writer).run(self._clock.time(), kept_seconds)

    # batches

    async def batch(self, key: BatchKey) -> tuple[BatchRecord, SeriesRecord | None] | None:
        return await self._readers.call(lambda db: batch_queries.batch_with_series(db, key))

    async def list_batches(self, namespace: str, limit: int) -> list[tuple[BatchRecord, SeriesRecord | None]]:
        return await self._readers.call(lambda db: batch_queries.list_batches(db, namespace, limit))

    async def running_batches(self) -> list[BatchRecord]:
        return await self._readers.call(batch_queries.running)

    async def delivered_groups(self, key: BatchKey, after: int, limit: int) -> list[GroupRecord]:
        return await self._readers.call(lambda db: batch_queries.delivered(db, key, after, limit))

    async def dataset(self, namespace: str, name: str) -> DatasetRecord | None:
        return await self._readers.call(lambda db: batch_queries.dataset(db, namespace, name))

    async def list_datasets(self, namespace: str) -> list[DatasetRecord]:
        return await self._readers.call(lambda db: batch_queries.list_datasets(db, namespace))

    async def task_histories(self, namespace: str, dataset: str) -> list[TaskHistory]:
        return await self._readers.call(lambda db: batch_queries.histories(db, namespace, dataset))

    async def read_blob(self, ref: BlobRef) -> bytes:
        return await self.use_blobs([ref], lambda blobs: blobs[0])

    async def use_blobs(self, refs: Sequence[BlobRef], use: Callable[[list[bytes]], T]) -> T:
        # This does not run in a thread of `_readers`, because a large answer would keep a connection from other queries.
        return await asyncio.to_thread(lambda: use([read_blob(self._blobs, ref) for ref in refs]))
