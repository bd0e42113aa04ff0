"""Locks on files: `flock`, which the kernel releases when the last process that holds the descriptor ends.

A lock file may be deleted by the process that holds it exclusively. So everybody checks afterwards that the file is still
there.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

_FIRST_SECONDS, _CAP_SECONDS = 0.02, 0.5


class FileLock:
    """A lock that is held until `release`, or until this process and its children with the descriptor end."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self.fd = fd

    @property
    def held(self) -> bool:
        return self.fd >= 0

    def again(self) -> FileLock:
        """Return the same lock for another holder: the kernel releases it when both have."""
        return FileLock(self._path, os.dup(self.fd))

    def release(self) -> None:
        """Release the lock. A second call has no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def release_and_delete(self) -> None:
        """Delete the file too. Only the exclusive holder may call this."""
        self._path.unlink(missing_ok=True)
        self.release()


def try_lock(path: Path, *, shared: bool) -> FileLock | None:
    """Return the lock; None if another holder excludes it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return FileLock(path, fd)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


async def wait_for_lock(path: Path, *, shared: bool = False) -> FileLock:
    """Return the lock as soon as no other holder excludes it."""
    lock = await wait_for_lock_unless(path, lambda: False, shared=shared)
    assert lock is not None
    return lock


async def wait_for_lock_unless(path: Path, is_done: Callable[[], bool], *, shared: bool = False) -> FileLock | None:
    """Return the lock, or None as soon as `is_done` is true while another holder excludes this one. The other holder may have
    done the work, and keep the lock for long."""
    pause = _FIRST_SECONDS
    while (lock := try_lock(path, shared=shared)) is None:
        if is_done():
            return None
        await asyncio.sleep(pause)
        pause = min(2 * pause, _CAP_SECONDS)
    return lock
