"""Exclusive lock that lets one server at a time use a folder. The lock ends when the holder's process ends. The lock
file names the holder.

The lock only prevents accidents. Even without the lock the store accepts writes of the newest server only
(`tables.check_epoch`). So a server may run without the lock in one case: Slurm has ended the holder's job, but the job's
node is cut off, and the file system has not released the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.store.journal_mode import file_system_of

POLL_SECONDS = 0.1
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""The C structure `flock` of a 64-bit Linux, for a write lock on the whole file."""
_HOLDER = re.compile(r", run (\d+)\.(\d+) of job (\S+)$")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a Slurm job. Slurm runs only one job with this name at a time (`--dependency=singleton`)."""

    name: str
    id: int
    restart: int = 0

    def succeeds(self, other: JobRun) -> bool:
        """Whether Slurm started this run after the other run. If so, Slurm has ended the other run."""
        return self.name == other.name and (self.id, self.restart) > (other.id, other.restart)


class FolderLock:
    """Lock of a data folder. A new object does not hold the lock: call `acquire`. Call `release` in any case, because
    it closes the lock file."""

    def __init__(self, folder: Path, run: JobRun | None = None) -> None:
        self._folder, self._run = folder, run
        self.held = False
        # When a holder is killed, the kernel does not tell a FUSE file system to release a byte-range lock
        # (fuse_setlk). So `_lock` uses flock on FUSE.
        self._by_fuse = file_system_of(folder).startswith("fuse")
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Try to take the lock; return whether this object holds it.

        Raises Unavailable if the file system has no locks, or if the holder's name cannot be written, such as on a full
        disk. The next call then tries both again.
        """
        if self.held:
            return True
        try:
            self._lock()
        except BlockingIOError:
            return False
        except OSError as error:
            message = f"{self._folder} cannot be locked ({error.strerror}); choose a folder on a file system with locks"
            raise Unavailable(message) from None
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{self._name()}\n".encode(), 0)
        except OSError as error:
            raise Unavailable(f"{self._folder / 'lock'} cannot be written: {error.strerror}") from None
        self.held = True
        return True

    def acquire_within(self, seconds: float) -> bool:
        """Try to take the lock for `seconds`; return whether this object holds it. Blocks."""
        deadline = time.monotonic() + seconds
        while not self.acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def holder_run(self) -> JobRun | None:
        """Run of the holder's Slurm job; None if the holder is unknown or runs outside a job."""
        found = _HOLDER.search(self._holder())
        return JobRun(found[3], int(found[1]), int(found[2])) if found else None

    def is_left_over(self) -> bool:
        """Whether the holder is an earlier run of our own job, or of an earlier job with the same name. Slurm has ended
        such a run."""
        holder = self.holder_run()
        return holder is not None and self._run is not None and self._run.succeeds(holder)

    def refusal(self) -> Unavailable:
        holder = self._holder() or "another process"
        return Unavailable(f"{self._folder} is in use by {holder}; stop that server first or choose another folder")

    def release(self) -> None:
        """Release the lock. The file is not deleted: one process could have opened the deleted file and another process
        a new file with the same name, and both could then hold a lock."""
        # A network file system may have taken the lock from this node and given it to another process. Then the file
        # names the other process.
        if self.held and self._holder() == self._name():
            os.ftruncate(self._fd, 0)
        self.held = False
        os.close(self._fd)

    def _lock(self) -> None:
        # A byte-range lock of the open file (F_OFD_SETLK) is better than the two other kinds. A lock of lockf does not
        # exclude the same process, and ends when any descriptor of the file is closed. On an NFS server's own machine,
        # flock does not see the byte-range locks that the kernel's NFS server holds for its clients.
        if not self._by_fuse:
            try:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _holder(self) -> str:
        return os.pread(self._fd, 300, 0).decode(errors="replace").strip()

    def _name(self) -> str:
        place = f"pid {os.getpid()} on {socket.gethostname()}"
        run = self._run
        return place if run is None else f"{place}, run {run.id}.{run.restart} of job {run.name}"
