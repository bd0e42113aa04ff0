"""Choice of a journal mode that works on the folder's file system. Test writes show whether a mode works.

WAL is the fastest mode, but it uses memory that processes share, and nodes do not share memory. So WAL corrupts a
database on a network file system (sqlite.org/wal.html). WAL is chosen only if three conditions hold: the file system is
known to be local, Rollyard's server stays on one machine, and a test with two connections succeeds.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import tempfile
from pathlib import Path
from typing import Literal

from rollyard.core.errors import Unavailable

Journal = Literal["WAL", "TRUNCATE", "DELETE"]

LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "tmpfs", "ramfs", "overlay"}
)
"""File systems that only one machine uses. Other file systems may be shared (nfs, lustre, gpfs, beegfs, fuse.*)."""


def choose_journal(folder: Path, *, moves: bool = False) -> Journal:
    """Probe the folder with real writes; return the first mode that works.

    `moves`: whether the next server may run on another node. Then WAL is not chosen, even if the file system is local
    on this node, because the other node could reach it only over a network. Raises Unavailable if the folder cannot be
    written or SQLite does not work in it.
    """
    _probe_write(folder)
    alone = not moves and file_system_of(folder) in LOCAL
    modes: tuple[Journal, ...] = ("WAL", "TRUNCATE", "DELETE") if alone else ("TRUNCATE", "DELETE")
    reason = ""
    for mode in modes:
        try:
            if _probe_database(folder, mode):
                return mode
        except sqlite3.Error as error:
            reason = str(error)
    raise Unavailable(
        f"{folder} cannot hold an SQLite database ({reason or 'its locks do not work'}); choose another folder"
    )


def file_system_of(folder: Path) -> str:
    """Return the type of the folder's file system from /proc/self/mountinfo; "unknown" if this file cannot be read."""
    path, best, found = str(folder.resolve()), -1, "unknown"
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return found
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), left.split()[4])
        # Of several mounts at the same point, the last mount hides the earlier ones.
        if len(point) >= best and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, found = len(point), right.split()[0]
    return found


def _probe_write(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe" * 1000)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            whole = len(file.read()) == 5000
    except OSError as error:
        raise Unavailable(f"cannot write to {folder}: {error.strerror}") from None
    if not whole:
        raise Unavailable(f"{folder} does not return the data that was written to it; choose another folder")


def _probe_database(folder: Path, mode: Journal) -> bool:
    """Return whether two connections can write one after the other, and the first then reads both rows.

    Return False also if SQLite does not set the mode. Raises sqlite3.Error.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".probe-") as probe, contextlib.ExitStack() as stack:
        path = Path(probe, "probe.db")
        one, two = (stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=2))) for _ in range(2))
        if one.execute(f"PRAGMA journal_mode={mode}").fetchone()[0].upper() != mode:
            return False
        with one:
            one.execute("CREATE TABLE probe (n INTEGER)")
            one.execute("INSERT INTO probe VALUES (1)")
        with two:
            two.execute("INSERT INTO probe VALUES (2)")
        rows = [n for (n,) in one.execute("SELECT n FROM probe ORDER BY n")]
        return rows == [1, 2]
