"""A private folder in the node-local scratch folder. It is removed at the end of the block that uses it.

A killed process leaves its folder behind. When the same user next calls `scratch_folder` on the node, the processes that
have the folder's name in `MARK` are killed, and the folder is removed, with the files in /dev/shm that it records. A lock
marks a folder as in use. The kernel releases the lock when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rollyard.core.process_tree import name, signal_all, with_variable
from rollyard.engine.process.shared_memory import RECORD, remove_recorded

log = logging.getLogger(__name__)

PREFIX = "ry-"
"""The prefix is short, because the whole path of a socket has at most 107 bytes."""
MARK = "ROLLYARD_ENGINE_SCRATCH"
"""Variable of an engine's processes, with the model server's folder as its value. A killed model server and a killed owner
of its processes leave those that have a session of their own; Slurm finds them only if it uses cgroups."""
KILL_SECONDS, PAUSE_SECONDS = 5.0, 0.02


@contextlib.contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Create a new folder (0700), and remove it at the end of the block. Raises OSError if `base` is missing or cannot
    be written."""
    _remove_left_over(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        lock = os.open(folder / "lock.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The file gets its name after it is locked. Otherwise, another process could lock it and remove the folder.
            (folder / "lock.new").rename(folder / "lock")
            yield folder
        finally:
            os.close(lock)
    finally:
        _remove(folder)


def _remove_left_over(base: Path) -> None:
    """Remove the folders that killed processes of this user left."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's folder, or its lock is missing or held
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _kill_left_over(folder)
                    _remove(folder)
            finally:
                os.close(lock)


def _kill_left_over(folder: Path) -> None:
    """Kill the processes of the folder's engine, and wait until they have ended."""
    deadline, names = time.monotonic() + KILL_SECONDS, set[str]()
    while (left := with_variable(MARK, str(folder))) and time.monotonic() < deadline:
        names |= {name(pid) for pid in left}
        signal_all(left, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)
    if names:
        log.warning("killed the processes that an ended model server had left: %s", ", ".join(sorted(names)))


def _remove(folder: Path) -> None:
    removed, kept = remove_recorded(folder)
    if removed:
        log.warning("removed what an ended engine had left in /dev/shm: %s", ", ".join(removed))
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
        return
    # A process still uses one of the files. The record stays, so that a later start removes it.
    for path in folder.iterdir():
        if path.name not in (RECORD, "lock"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
