"""The store on SQLite: one writer with group commit, a few readers, blobs in packs, changes told to watchers."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from rollyard.clock import Clock, as_datetime
from rollyard.errors import NotFound, Unavailable
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.event import Event
from rollyard.kinds.rollout import Stage, Status
from rollyard.store import objects, rollouts
from rollyard.store.base import BlobRef, RolloutFilter, RolloutRecord, Transaction, WatchEvent
from rollyard.store.blobs import PackWriter, read_blob
from rollyard.store.journal import choose_journal
from rollyard.store.lock import FolderLock
from rollyard.store.readers import Readers
from rollyard.store.rollouts import RolloutRows
from rollyard.store.schema import begin_epoch, migrate
from rollyard.store.watch import Feed, Watch
from rollyard.store.writer import Unit, Writer

T = TypeVar("T")

DATABASE = "rollyard.db"
BUSY_MILLISECONDS = 10_000
READERS = 2
LOG_CHUNK = 500


class SqliteStore:
    """A folder with a database and packs; open it with `open`."""

    def __init__(
        self, folder: Path, lock: FolderLock, unit: Unit, readers: Readers, meta: tuple[int, str], clock: Clock
    ) -> None:
        self.epoch, self.server_id = meta
        self._blobs = folder / "blobs"
        self._lock = lock
        self._readers = readers
        self._clock = clock
        db = unit.db
        self._feed = Feed(objects.load(db), objects.latest_version(db), objects.oldest_start(db), self._read_log)
        self._writer = Writer(unit, self._feed.publish)
        self._closed = False

    @classmethod
    async def open(cls, folder: Path, clock: Clock) -> SqliteStore:
        """Take the folder's lock and the next epoch.

        Raises Unavailable when another server has it, or it cannot bear a database.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # noqa: ASYNC240 - nothing else runs yet
        lock = FolderLock(folder)
        try:
            return cls._open(folder, lock, clock)
        except sqlite3.Error as error:
            lock.release()
            raise Unavailable(f"{folder / DATABASE} cannot be opened: {error}") from None
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open(cls, folder: Path, lock: FolderLock, clock: Clock) -> SqliteStore:
        path, blobs = folder / DATABASE, folder / "blobs"
        journal = choose_journal(folder)
        blobs.mkdir(exist_ok=True, mode=0o700)
        db = _connect(path)
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("PRAGMA synchronous = FULL")
        migrate(db)
        meta = begin_epoch(db)
        readers = Readers([_connect(path, read_only=True) for _ in range(READERS)])
        return cls(folder, lock, Unit(db, PackWriter(blobs, meta[0])), readers, meta, clock)

    async def close(self) -> None:
        """What was asked for is done first."""
        if self._closed:
            return
        self._closed = True
        self._feed.close()
        await self._writer.close()
        await self._readers.close()
        self._lock.release()

    # objects

    async def create(self, obj: KindObject) -> KindObject:
        return await self._writer.call(lambda unit: objects.create(unit, obj, self._now()))

    async def get(self, key: ObjectKey) -> KindObject:
        found = self._feed.get(key)
        if found is None:
            raise NotFound(f"{objects.describe(key)} not found")
        return found

    async def list_objects(self, kind: str, namespace: str | None = None) -> tuple[list[KindObject], str]:
        return self._feed.list(kind, namespace), str(self._feed.version)

    async def update(self, obj: KindObject, part: Literal["spec", "status"]) -> KindObject:
        return await self._writer.call(lambda unit: objects.update(unit, obj, part))

    async def delete(self, key: ObjectKey, *, uid: str | None = None) -> KindObject:
        return await self._writer.call(lambda unit: objects.delete(unit, key, uid, self._now()))

    async def prune_events(self, older_than: float) -> int:
        horizon = datetime.fromtimestamp(older_than, UTC)
        old = [o for o in self._feed.list("Event") if isinstance(o, Event) and o.last_timestamp < horizon]
        return await self._writer.call(lambda unit: objects.delete_unchanged(unit, list(old))) if old else 0

    def watch(self, kind: str | None, since: str) -> AsyncIterator[WatchEvent]:
        return Watch(self._feed, kind, since)

    # rollouts

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        return await self._writer.call(lambda unit: change(RolloutRows(unit)))

    async def get_rollout(self, namespace: str, id: str) -> RolloutRecord | None:
        return await self._readers.call(lambda db: rollouts.get(db, namespace, id))

    async def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        return await self._readers.call(lambda db: rollouts.find(db, filter))

    async def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None
    ) -> list[RolloutRecord]:
        return await self._readers.call(lambda db: rollouts.finished(db, after, limit, namespace, group))

    async def counts(
        self, namespace: str, pool: str | None = None, group: str | None = None
    ) -> dict[tuple[Stage, Status], int]:
        return await self._readers.call(lambda db: rollouts.counts(db, namespace, pool, group))

    async def reward_mean(self, namespace: str, pool: str | None = None, group: str | None = None) -> float | None:
        return await self._readers.call(lambda db: rollouts.reward_mean(db, namespace, pool, group))

    async def read_blob(self, ref: BlobRef) -> bytes:
        return await self._readers.call(lambda _: read_blob(self._blobs, ref))

    # inside

    def _now(self) -> datetime:
        return as_datetime(self._clock.time())

    async def _read_log(self, after: int) -> list[tuple[int, WatchEvent]]:
        return await self._readers.call(lambda db: objects.read_changes(db, after, LOG_CHUNK))


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """In autocommit mode: transactions are begun and ended by name. Used by one thread at a time, not always the same."""
    db = sqlite3.connect(
        f"file:{path}?mode={'ro' if read_only else 'rwc'}", uri=True, isolation_level=None, check_same_thread=False
    )
    db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    return db
