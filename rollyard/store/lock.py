"""One server a folder: an exclusive lock that dies with its holder, and says who that is."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from rollyard.errors import Unavailable


class FolderLock:
    """Held from construction to `release`. Raises Unavailable naming the holder when another has it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        # flock, not lockf: a POSIX lock does not exclude its own process and is dropped when any descriptor of the file
        # is closed. On NFS the kernel turns flock into a byte-range lock, so other nodes are kept out as well.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 300, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise Unavailable(_refusal(folder, holder, error)) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _refusal(folder: Path, holder: str, error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return f"{folder} is in use by {holder or 'another process'}; stop that server first or choose another folder"
    return f"{folder} cannot be locked ({error.strerror}); choose a folder on a file system with locks"
