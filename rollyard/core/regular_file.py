"""Files that somebody else names or writes, opened without a wait."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file. Raises OSError, also for a fifo, which would keep the thread waiting, for a device, which may have no end,
    and for a folder."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is a fifo or a device, not a file", os.fspath(path))
