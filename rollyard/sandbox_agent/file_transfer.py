"""Copies a file or a folder out of the sandbox or into it, as a tar stream on standard output or standard input.

`python -m rollyard.sandbox_agent.file_transfer out PATH` and `... in PATH`. It runs as a program of the sandbox, with the
limits of all its programs. Relative paths start in the working folder. What is written on standard error is shown to the
person who copies.
"""

from __future__ import annotations

import os
import signal
import sys
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, NoReturn

_CHUNK = 1 << 16
_LATEST = 1 << 33
"""Seconds from 1970 to the year 2242. A file may have a time that no program can set, and Python cannot write."""


class _ExactFile:
    """A file that is read to exactly the length in its tar header, although a process of the sandbox may change it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self.short = False

    def read(self, count: int) -> bytes:
        data = self._file.read(min(count, self._left))
        if not data and self._left:
            self.short = True
            data = bytes(min(count, self._left, _CHUNK))
        self._left -= len(data)
        return data


def copy_out(path: str) -> None:
    """Write the file or the folder as a tar stream. The first member has the last part of the path as its name."""
    top = os.path.realpath(path)
    if not os.path.lexists(top):
        _refuse(f"{path}: there is no such file or folder in the sandbox")
    base = os.path.basename(top) or "root"
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for found in _walk(top):
            name = base + found[len(top.rstrip("/")) :]
            try:
                _add(archive, found, name)
            except OSError as error:
                _say(f"{found} is left out: {error.strerror}")


def _walk(path: str) -> Iterator[str]:
    """Yield the path, and everything below it. Other file systems, such as /proc, are left out."""
    device, waiting = os.lstat(path).st_dev, [path]
    while waiting:
        here = waiting.pop()
        yield here
        try:
            if os.path.isdir(here) and not os.path.islink(here):
                if os.lstat(here).st_dev != device:
                    continue
                waiting += sorted((entry.path for entry in os.scandir(here)), reverse=True)
        except OSError as error:
            _say(f"{here} is left out: {error.strerror}")


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    entry = archive.gettarinfo(path, name)
    entry.uname = entry.gname = ""
    entry.mtime = min(max(entry.mtime, -_LATEST), _LATEST)
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        _say(f"{path} is left out: it is not a file, folder or link")
        return
    if not entry.isreg():
        archive.addfile(entry)
        return
    # Non-blocking, because the file may have become a named pipe, whose opening would block for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb", buffering=0) as file:
        content = _ExactFile(file, entry.size)
        archive.addfile(entry, content)  # type: ignore[arg-type]  # only `read` is called
        if content.short:
            _say(f"{path} became shorter while it was copied; the rest is filled with zeros")


def copy_in(path: str) -> None:
    """Unpack a tar stream. If `path` is a folder, the stream is unpacked in it, else the stream's first part gets this
    name."""
    into, name = path, ""
    if not os.path.isdir(path):
        into, name = os.path.dirname(path.rstrip("/")) or ".", os.path.basename(path.rstrip("/"))
    if not os.path.isdir(into):
        _refuse(f"{into}: there is no such folder in the sandbox; `rollyard exec ROLLOUT -- mkdir -p {into}` makes it")
    written = into
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for entry in archive:
                if name:
                    entry.name = "/".join([name, *entry.name.split("/")[1:]])
                    if entry.islnk():
                        entry.linkname = "/".join([name, *entry.linkname.split("/")[1:]])
                written = os.path.join(into, entry.name)
                _extract(archive, entry, into)
    except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
        _refuse(f"{written} cannot be written in the sandbox: {error}")
    while sys.stdin.buffer.read(_CHUNK):
        pass  # so that the sender can finish


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo, into: str) -> None:
    """Extract an entry. A file or a link gets its name when it is whole, and replaces what had the name, but no folder."""
    if entry.isdir():
        entry.mode |= 0o700  # for the files in it
        archive.extract(entry, into, filter="tar")
        return
    path = os.path.join(into, entry.name)
    entry.name = os.path.join(os.path.dirname(entry.name), f".rollyard-cp-{os.getpid()}")
    new = os.path.join(into, entry.name)
    try:
        archive.extract(entry, into, filter="tar")
        os.replace(new, path)
    finally:
        if os.path.lexists(new):  # it is not whole, or is a further name of the file that has the name already
            os.unlink(new)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _refuse(text: str) -> NoReturn:
    _say(text)
    sys.exit(1)


if __name__ == "__main__":
    os.umask(0o022)
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(1))  # the person is gone; what is not whole is deleted
    {"out": copy_out, "in": copy_in}[sys.argv[1]](sys.argv[2])
