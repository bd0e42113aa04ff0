"""A private folder below the node-local scratch that goes with its process.

A process that was killed leaves its folder; the next one on the node clears it. What lives is told by a lock that dies
with its holder.
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
"""Short: a socket's whole path has 107 bytes."""


@contextlib.contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """A new folder (0700). Raises OSError when `base` is not there or cannot be written."""
    _remove_left_over(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        lock = os.open(folder / "lock.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Under its name only once it is held: nobody sees a lock that is free and takes the folder for dead.
            (folder / "lock.new").rename(folder / "lock")
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(base: Path) -> None:
    """Remove what killed processes of this user left."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, one without a lock, or one whose lock is held
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
