"""Opening of a data folder: lock and probe the folder, migrate the database, begin a new epoch.

The epoch is a number that grows each time a server opens the folder.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.kinds.base import KindObject
from rollyard.store import objects, tables
from rollyard.store.blobs import PackWriter, newest_epoch
from rollyard.store.folder_lock import FolderLock, JobRun
from rollyard.store.journal_mode import Journal, choose_journal

log = logging.getLogger(__name__)

READERS = 4
BUSY_SECONDS = 10.0
"""Seconds that SQLite waits for a lock. Without WAL, readers and commits wait for each other, but only for a short time."""
TAKE_OVER_SECONDS = 10.0
"""Seconds to wait for the lock after a new epoch has begun. A server that still holds the lock reads the epoch every
second, and ends when it finds the new epoch."""


@dataclass(frozen=True, slots=True)
class Database:
    """An opened folder. Any thread may use a connection, but only one thread at a time."""

    lock: FolderLock
    journal: Journal
    writing: sqlite3.Connection
    reading: list[sqlite3.Connection]
    packs: PackWriter
    blobs: Path
    epoch: int
    server_id: str
    objects: list[KindObject]
    version: int
    oldest: int


def open_database(folder: Path, run: JobRun | None = None, told_epoch: int = 0) -> Database:
    """Open a folder. Blocks for milliseconds; for up to TAKE_OVER_SECONDS if an earlier job or run of this server holds
    the lock.

    `told_epoch`: the newest epoch that other processes know. The new epoch is higher than `told_epoch`, and higher than
    the epochs of the database and of the packs.

    Raises Unavailable with the reason if the folder cannot be used.
    """
    with ExitStack() as undo:
        try:
            blobs = folder / "blobs"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            blobs.mkdir(mode=0o700, exist_ok=True)
            lock = FolderLock(folder, run)
            undo.callback(lock.release)
            _take_lock(lock, folder)
            journal = choose_journal(folder, moves=run is not None)
            database = _open(undo, folder / "rollyard.db", blobs, lock, journal, told_epoch)
        except OSError as error:
            raise Unavailable(f"{error.filename or folder} cannot be used: {error.strerror}") from None
        except sqlite3.Error as error:
            raise Unavailable(f"{folder / 'rollyard.db'} cannot be used: {error}") from None
        undo.pop_all()
        return database


def _take_lock(lock: FolderLock, folder: Path) -> None:
    if lock.acquire():
        return
    if not lock.is_left_over():
        raise lock.refusal()
    with closing(_connect(folder / "rollyard.db")) as db:
        tables.begin_epoch(db)  # from this epoch on, the store refuses the former holder's commits
    if not lock.acquire_within(TAKE_OVER_SECONDS):
        log.warning("continuing without the lock of %s: a node that Slurm has given up still holds it", folder)


def _open(undo: ExitStack, path: Path, blobs: Path, lock: FolderLock, journal: Journal, told_epoch: int) -> Database:
    packs = newest_epoch(blobs)
    if packs is not None and not (path.exists() and path.stat().st_size):
        raise _why_rows_missing(path, blobs)  # raised before an empty database is created
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would use the umask
    writing = _connect(path)
    undo.callback(writing.close)
    if writing.execute(f"PRAGMA journal_mode={journal}").fetchone()[0].upper() != journal:
        raise Unavailable(f"{path} cannot change to journal mode {journal}; is another process reading it?")
    writing.execute("PRAGMA synchronous=FULL")
    if packs is not None and tables.is_new(writing):
        raise _why_rows_missing(path, blobs)
    tables.prepare(writing)
    last = tables.last_epoch(writing)
    newest = max(packs or 0, told_epoch)
    epoch, server_id = tables.begin_epoch(writing, newest)
    if newest > last:
        log.warning(
            "%s is older than its folder: it has epoch %s, but there are packs or an endpoint.json of epoch %s. It seems to be "
            "restored from a backup. Continuing with epoch %s. Everything since the backup is unknown, and its packs stay in "
            "the folder",
            path, last, newest, epoch,
        )  # fmt: skip
    reading = [_connect(path) for _ in range(READERS)]
    for connection in reading:
        undo.callback(connection.close)
        connection.execute("PRAGMA query_only=ON")
    return Database(
        lock=lock,
        journal=journal,
        writing=writing,
        reading=reading,
        packs=PackWriter(blobs, epoch),
        blobs=blobs,
        epoch=epoch,
        server_id=server_id,
        objects=objects.load(writing),
        version=objects.latest_version(writing),
        oldest=objects.oldest_start(writing),
    )


def _why_rows_missing(path: Path, blobs: Path) -> Unavailable:
    return Unavailable(
        f"{path} is missing or empty, but {blobs} contains trajectories: restore the database from a backup (rollyard.db with "
        "its -wal file, if there is one), or move blobs/ away to start without them"
    )


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level=None: only our own code begins transactions. cached_statements: prepared statements are reused.
    db = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    db.execute("PRAGMA temp_store=MEMORY")
    db.execute("PRAGMA cache_size=-32768")
    return db
