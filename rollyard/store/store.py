"""`Store`: a data folder with one SQLite database, and blobs in pack files beside it.

The data that a call writes is on disk before the call returns. Waiting writes are committed together (group commit).
Each write has its own savepoint, so a failed write does not undo the others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollyard.core.clock import Clock, SystemClock
from rollyard.store import objects, tables
from rollyard.store.batch_store import BatchStore
from rollyard.store.database import Database, open_database
from rollyard.store.ended_allocations import EndedAllocationTable
from rollyard.store.evaluation_store import EvaluationStore
from rollyard.store.folder_lock import JobRun
from rollyard.store.metric_tables import MetricTables
from rollyard.store.object_store import ObjectStore
from rollyard.store.pack_store import PackStore
from rollyard.store.read_connections import Readers
from rollyard.store.rollout_store import RolloutStore
from rollyard.store.session_tables import SessionTables
from rollyard.store.watch import WatchEvent, WatchFeed
from rollyard.store.writer import Writer, WriteUnit

LOG_CHUNK = 500


class Store:
    """An opened data folder. If two processes have the folder open, only the process that opened it later can write."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.epoch = database.epoch
        """Sequence number of this opening of the store. It grows with each opening. Writes with an older number are
        refused."""
        self.server_id = database.server_id
        """Random id of the store, which never changes. It distinguishes our jobs from the jobs of another server."""
        self.journal = database.journal
        """Journal mode of the database, chosen for the folder's file system."""
        self._lock = database.lock
        self._readers = readers = Readers(database.reading)
        self._feed = WatchFeed(database.objects, database.version, database.oldest, self._read_log)
        unit = WriteUnit(database.writing, database.packs)
        self._writer = writer = Writer(unit, database.epoch, self._feed.publish)
        self.objects = ObjectStore(self._feed, writer, clock)
        self.rollouts = RolloutStore(readers, writer)
        self.batches = BatchStore(readers, writer)
        self.packs = PackStore(database.blobs, readers, writer, clock)
        self.sessions = SessionTables(writer, readers)
        self.ended_allocations = EndedAllocationTable(writer, readers)
        self.metrics = MetricTables(writer, readers)
        self.evaluations = EvaluationStore(writer, readers)
        self._closed = False

    @classmethod
    async def open(
        cls, folder: Path, clock: Clock | None = None, run: JobRun | None = None, told_epoch: int = 0
    ) -> Store:
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
        self.packs.close()
        await self._readers.close()
        await self._writer.close()
        self._lock.release()

    async def _read_log(self, after: int) -> list[tuple[int, WatchEvent]]:
        return await self._readers.call(lambda db: objects.read_changes(db, after, LOG_CHUNK))
