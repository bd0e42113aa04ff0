"""Reads and writes whole files, for the editor tool and for the owner of the sandbox. A named pipe that the task made
cannot block a call."""

from __future__ import annotations

import errno
import os
import stat


def read_file(path: str, limit: int) -> bytes:
    """Read a regular file. Raises OSError, with EFBIG if the file is longer than `limit` bytes."""
    # Non-blocking, because opening a named pipe that the task made would block for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file", path)
        data = bytearray()
        while chunk := os.read(fd, min(1 << 20, limit + 1 - len(data))):
            data += chunk
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"longer than {limit} bytes", path)
        return bytes(data)
    finally:
        os.close(fd)


def write_file(path: str, data: bytes, mode: int) -> None:
    """Create or overwrite a file. Missing folders above it are created. A file that cannot be written, as on a full disk,
    keeps its content. Links to the file stay links to it. Raises OSError."""
    os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    existed = os.path.lexists(path)
    if existed and not stat.S_ISREG(kind := os.stat(path).st_mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL, "not a regular file", path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        _reserve(fd, len(data))
    except OSError:
        if not existed:
            os.unlink(path)
        os.close(fd)
        raise
    with open(fd, "wb") as file:
        file.write(data)
        file.truncate()
        os.fchmod(fd, mode)


def _reserve(fd: int, length: int) -> None:
    """Make the disk keep room for the first `length` bytes, without a change to the content. Raises OSError."""
    before = os.fstat(fd).st_size
    try:
        if length:
            os.posix_fallocate(fd, 0, length)
    except OSError as error:
        os.ftruncate(fd, before)
        if error.errno not in _CANNOT_RESERVE:
            raise


_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EBADF)
"""The file system has no such call, and the C library cannot do without it."""
