"""A private folder below the node-local scratch, which is removed at the end of its process.

A process that is killed leaves its folder; the next process on the node removes it. A lock marks a folder as in use.
The kernel releases the lock when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "ry-"
"""Short, because a socket's whole path has at most 107 bytes."""


@contextlib.contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Create a new folder (0700). Raises OSError if `base` is missing or cannot be written."""
    _remove_left_over(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        lock = os.open(folder / "lock.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Renamed only after it is locked: otherwise another process could see a free lock and remove the folder.
            (folder / "lock.new").rename(folder / "lock")
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(base: Path) -> None:
    """Remove the folders that killed processes of this user left."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's folder, a folder without a lock, or one with a held lock
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
