"""Applies an archive of changed files to this sandbox, before the task's first process runs.

The sandbox agent has no more rights than the task. So an archive can only write what the task could write itself.
"""

from __future__ import annotations

import os
import stat

from rollyard.sandbox_agent import incremental_tar
from rollyard.sandbox_agent.incremental_tar import BrokenChanges, ChangedFile, decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rollyard.sandbox_agent.left_out import LeftOut
    from rollyard.sandbox_agent.mounts import Mounts

_CHUNK = 1 << 20


class ImageDiffers(Exception):
    """A file of the image, which the archive keeps, is not there: the archive belongs to another image."""


class ChangeRestorer:
    def __init__(self, mounts: Mounts, take: Callable[[int], bytes], rules: LeftOut | None = None) -> None:
        """`take`: returns exactly so many bytes of the archive, or raises BrokenChanges. `rules`: what is left out."""
        self._mounts = mounts
        self._take = take
        self._rules = rules
        self._folders: list[ChangedFile] = []
        self.path = b""
        """Path of the present entry."""

    def apply(self) -> None:
        """Raises BrokenChanges, ImageDiffers, and OSError for `path`."""
        while (entry := decoded(self._take)) is not None:
            self.path = b"/" + entry.path
            if entry.kind == incremental_tar.FOLDER:
                self._folder(entry)
            else:
                self._file(entry)
        for entry in reversed(self._folders):
            self.path = b"/" + entry.path
            self._set_folder(entry)

    def _folder(self, entry: ChangedFile) -> None:
        path = self.path
        made = not _is_folder(path)
        if self._rules is not None and self._rules.leaves_out(path, made and os.path.lexists(path), folder=True):
            return
        if made:
            self._clear(path)
            os.mkdir(path, 0o700)
        elif (info := os.lstat(path)).st_mode & 0o700 != 0o700 and info.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(info.st_mode) | 0o700)
        self._folders.append(entry)
        names, entry.names = entry.names, ()  # the entry is kept to the end
        listed = {name for _, name in names}
        there = set(os.listdir(path))
        for name in there - listed:
            below = path.rstrip(b"/") + b"/" + name
            if below in self._mounts.points or below in self._mounts.above:
                continue
            if self._rules is None or not self._rules.keeps(below):
                _remove(below)
        for mark, name in names:
            if mark == incremental_tar.KEPT and name not in there:
                self.path = path.rstrip(b"/") + b"/" + name
                raise ImageDiffers

    def _file(self, entry: ChangedFile) -> None:
        path = self.path
        if self._rules is not None and self._rules.leaves_out(path, os.path.lexists(path)):
            return self._pass_over(entry)
        if self._rules is not None:
            self._rules.note(path)
        self._clear(path)
        if entry.kind == incremental_tar.HARD_LINK:
            if self._rules is None or os.path.lexists(b"/" + entry.link):
                os.link(b"/" + entry.link, path, follow_symlinks=False)
            return
        if entry.kind == incremental_tar.SYMLINK:
            os.symlink(entry.link, path)
        elif entry.kind == incremental_tar.FIFO:
            os.mkfifo(path)
            os.chmod(path, entry.mode)
        else:
            self._regular(path, entry)
            return
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def _regular(self, path: bytes, entry: ChangedFile) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for offset, length in entry.extents:
                while length:
                    data = self._take(min(_CHUNK, length))
                    _write(fd, data, offset)
                    offset += len(data)
                    length -= len(data)
            self._take(-entry.data_bytes % incremental_tar.BLOCK)
            os.ftruncate(fd, entry.size)
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _pass_over(self, entry: ChangedFile) -> None:
        for length in (*(length for _, length in entry.extents), -entry.data_bytes % incremental_tar.BLOCK):
            while length:
                length -= len(self._take(min(_CHUNK, length)))

    def _clear(self, path: bytes) -> None:
        """Remove what is at `path`, and make the folder above it if that is missing."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return
        if stat.S_ISDIR(mode):
            _remove(path)
        else:
            os.unlink(path)

    def _set_folder(self, entry: ChangedFile) -> None:
        try:
            os.chmod(self.path, entry.mode)
            os.utime(self.path, ns=(entry.mtime_ns, entry.mtime_ns))
        except OSError:
            pass  # a folder of the image that belongs to another user, in which the task may write


def _is_folder(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _remove(path: bytes) -> None:
    if _is_folder(path):
        from shutil import rmtree

        rmtree(path)
    else:
        os.unlink(path)


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def exact_reader(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a function that reads exactly so many bytes with `read`, and raises BrokenChanges if there are fewer."""

    def take(count: int) -> bytes:
        data = read(count)
        if len(data) != count:
            raise BrokenChanges("it ends too early")
        return data

    return take
