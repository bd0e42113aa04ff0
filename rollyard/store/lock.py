"""One server a folder: an exclusive lock that dies with its holder, and says who that is.

The lock keeps an accident out; what makes a second writer harmless is the epoch (`schema.check_epoch`). So a job may go on
without the lock where Slurm has ended its holder and the holder's node, cut off, still has it.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rollyard.errors import Unavailable

POLL_SECONDS = 0.1
_HOLDER = re.compile(r", run (\d+)\.(\d+) of job (\S+)$")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a Slurm job whose name Slurm lets run once at a time (`--dependency=singleton`)."""

    name: str
    id: int
    restart: int = 0

    def succeeds(self, other: JobRun) -> bool:
        """Slurm started this one later, so by its account the other has ended."""
        return self.name == other.name and (self.id, self.restart) > (other.id, other.restart)


class FolderLock:
    """Not yet held when made: `take` it; `release` closes it in any case."""

    def __init__(self, folder: Path, run: JobRun | None = None) -> None:
        self._folder, self._run = folder, run
        self.held = False
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Whether it is held now. Raises Unavailable where the file system has no locks."""
        if self.held:
            return True
        try:
            # flock, not lockf: a POSIX lock does not exclude its own process and is dropped when any descriptor of the
            # file is closed. On NFS the kernel turns flock into a byte-range lock, so other nodes are kept out as well.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            message = f"{self._folder} cannot be locked ({error.strerror}); choose a folder on a file system with locks"
            raise Unavailable(message) from None
        self.held = True
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{self._name()}\n".encode(), 0)
        return True

    def take_within(self, seconds: float) -> bool:
        """Blocks."""
        deadline = time.monotonic() + seconds
        while not self.take():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def is_left_over(self) -> bool:
        """Whether its holder is an earlier run of our own job, which Slurm has ended."""
        found = _HOLDER.search(self._holder())
        return (
            found is not None
            and self._run is not None
            and self._run.succeeds(JobRun(found[3], int(found[1]), int(found[2])))
        )

    def refusal(self) -> Unavailable:
        holder = self._holder() or "another process"
        return Unavailable(f"{self._folder} is in use by {holder}; stop that server first or choose another folder")

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        if self.held:
            os.ftruncate(self._fd, 0)
        self.held = False
        os.close(self._fd)

    def _holder(self) -> str:
        return os.pread(self._fd, 300, 0).decode(errors="replace").strip()

    def _name(self) -> str:
        place = f"pid {os.getpid()} on {socket.gethostname()}"
        run = self._run
        return place if run is None else f"{place}, run {run.id}.{run.restart} of job {run.name}"
