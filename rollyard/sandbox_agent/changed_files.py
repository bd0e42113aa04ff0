"""The files that the sandbox has changed since its start, written as an archive.

A changed or new file has a later change time (`st_ctime`) than the start of the sandbox agent. No program can set this
time. A file that the image's overlay shows unchanged has the time of the image's own file. When something below a folder
changes, the overlay copies the folder, which gives the folder a later time too. So unchanged folders are not read.
"""

from __future__ import annotations

import errno
import os
import stat

from rollyard.sandbox_agent import incremental_tar
from rollyard.sandbox_agent.incremental_tar import ChangedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from rollyard.sandbox_agent.incremental_tar import Extent
    from rollyard.sandbox_agent.mounts import Mounts

_CHUNK = 1 << 20
_SAVED = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)
_MOST_EXTENTS = 10_000
"""Greatest number of parts of a sparse file. The rest of the file is read with its holes."""


_MOST_NAMES, _MOST_NAME_BYTES = 300_000, 32 << 20
"""Greatest number of files in one folder, and of bytes in their names. The names of a folder are in memory together, and this
process has no limit of memory."""
_MOST_LINK_BYTES = 32 << 20
"""Greatest number of bytes of the names of files with several names. Further such files are saved as separate files."""
_MOST_OPENED = 10_000
"""Greatest number of folders that are made readable for the time of the snapshot."""


class TooManyChanges(Exception):
    """The archive would be longer than the limit, or a folder has too many files. `str()` is the end of a sentence."""


class Part:
    """A folder, to which an archive is limited. Paths in the archive begin in the folder."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        folder = os.fsencode(settings["folder"])
        self.top = os.path.realpath(folder)
        """The folder, or the one that a link in its place names."""
        self._names = {os.fsencode(name) for name in settings["names"]}
        self._endings = tuple(os.fsencode(ending) for ending in settings["endings"])
        self._marks = {os.fsencode(name) for name in settings["marks"]}
        self._largest: int = settings["largest"]

    def skips(self, name: bytes) -> bool:
        """Whether files and folders of this name count as unchanged."""
        return name in self._names or name.endswith(self._endings)

    def is_marked(self, names: Iterable[bytes]) -> bool:
        """Whether a folder with these names in it counts as unchanged."""
        return not self._marks.isdisjoint(names)

    def is_too_large(self, info: os.stat_result) -> bool:
        return stat.S_ISREG(info.st_mode) and info.st_size > self._largest


class ChangeArchive:
    """Writes the archive. Files that change meanwhile may be saved half changed."""

    def __init__(
        self, mounts: Mounts, since_ns: int, write: Callable[[bytes], object], limit: int, part: Part | None = None
    ) -> None:
        """`limit`: greatest length of the archive in bytes. `part`: default: the whole sandbox."""
        self._part = part
        self._top = part.top if part is not None else b"/"
        self._mounts = mounts
        self._since = since_ns
        self._write = write
        self._limit = self._left = limit
        self._link_bytes = 0
        self._links: dict[tuple[int, int], bytes] = {}
        """Device and inode of a file with several names -> the first of the names. An overlay shows different inodes for a
        file of the image and a new hard link to it, so these become two files."""
        self._opened: list[tuple[bytes, int]] = []
        """Folders that were made readable, with their own modes."""
        self.files = 0
        self.left_out: list[str] = []
        """Names of sockets, devices, files that cannot be read and files that are too large, at most ten."""
        self.left_out_count = 0

    def write(self) -> None:
        """Raises TooManyChanges, and the errors of `write`."""
        try:
            if self._part is None:
                for root, whole in sorted(self._mounts.writable.items()):
                    self._folders(root, self._is_changed(os.lstat(root), whole), whole)
            elif os.path.isdir(self._top):
                self._folders(self._top, True, self._mounts.is_whole(self._top))
            self._put(incremental_tar.END)
        finally:
            for path, mode in self._opened:
                _chmod(path, mode)

    def _folders(self, root: bytes, changed: bool, whole: bool) -> None:
        waiting = [(b"", [(root, changed)])]
        while waiting:
            above, below = waiting[-1]
            if not below:
                waiting.pop()
                continue
            name, changed = below.pop()
            path = above + name
            try:
                waiting.append((path.rstrip(b"/") + b"/", self._folder(path, changed, whole)[::-1]))
            except OSError as error:
                self._skip(path, error)

    def _folder(self, path: bytes, changed: bool, whole: bool) -> list[tuple[bytes, bool]]:
        """Write a folder's files, and the folder itself if it has `changed`. Return the names of the folders in it that
        must be looked at, and whether they have changed."""
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode):
            return []
        if changed and info.st_mode & 0o700 != 0o700 and info.st_uid == os.geteuid():
            if len(self._opened) == _MOST_OPENED:
                raise TooManyChanges(f"more than {_MOST_OPENED} folders are closed for their owner")
            self._opened.append((path, stat.S_IMODE(info.st_mode)))
            os.chmod(path, stat.S_IMODE(info.st_mode) | 0o700)
        names, part = _names(path), self._part
        if part is not None and path != self._top and part.is_marked(names):
            return []
        listed: list[tuple[bytes, bytes]] = []
        files: list[bytes] = []
        folders: list[tuple[bytes, bool]] = []
        for name in names:
            child = path.rstrip(b"/") + b"/" + name
            if child in self._mounts.points:
                continue
            if part is not None and part.skips(name):
                listed.append((incremental_tar.KEPT, name))
                continue
            try:
                found = os.lstat(child)
            except OSError as error:
                self._skip(child, error)
                continue
            mark = incremental_tar.KEPT
            if stat.S_ISDIR(found.st_mode):
                # An unchanged, empty folder of the root counts as changed too: the runtime may have made it.
                new = self._is_changed(found, whole) or (path == b"/" and _is_empty(child))
                if new:
                    mark = incremental_tar.FOLDER_WRITTEN
                if new or child in self._mounts.above:
                    folders.append((name, new))
            elif self._is_changed(found, whole):
                if stat.S_IFMT(found.st_mode) not in _SAVED:
                    self._leave_out(child)
                    continue
                if part is not None and part.is_too_large(found):
                    self._leave_out(child)
                else:
                    mark = incremental_tar.WRITTEN
                    files.append(name)
            listed.append((mark, name))
        if changed:
            entry = self._entry(path, incremental_tar.FOLDER, info)
            entry.names = listed
            self._put(incremental_tar.encoded(entry))
        for name in files:
            child = path.rstrip(b"/") + b"/" + name
            try:
                self._file(child, os.lstat(child))
            except OSError as error:
                self._skip(child, error)
        return folders

    def _is_changed(self, info: os.stat_result, whole: bool) -> bool:
        return whole or info.st_ctime_ns >= self._since

    def _file(self, path: bytes, info: os.stat_result) -> None:
        if stat.S_IFMT(info.st_mode) not in _SAVED:  # it has just taken the place of a file
            return
        self.files += 1
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
            key = (info.st_dev, info.st_ino)
            first = self._links.get(key, path)
            if first == path and self._link_bytes < _MOST_LINK_BYTES:
                self._links[key] = path
                self._link_bytes += len(path) + 200
            if first != path:
                entry = self._entry(path, incremental_tar.HARD_LINK, info)
                entry.link = self._inside(first)
                self._put(incremental_tar.encoded(entry))
                return
        if stat.S_ISREG(info.st_mode):
            self._regular(path, info)
            return
        entry = self._entry(path, incremental_tar.FIFO, info)
        if stat.S_ISLNK(info.st_mode):
            entry.kind, entry.link = incremental_tar.SYMLINK, os.readlink(path)
        self._put(incremental_tar.encoded(entry))

    def _regular(self, path: bytes, info: os.stat_result) -> None:
        # Non-blocking, because another process may put a fifo in the file's place at any moment.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except PermissionError:
            os.chmod(path, stat.S_IMODE(info.st_mode) | 0o400)
            try:
                fd = os.open(path, flags)
            finally:
                os.chmod(path, stat.S_IMODE(info.st_mode))
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return
            entry = self._entry(path, incremental_tar.FILE, found)
            entry.size, entry.extents = found.st_size, ((0, found.st_size),)
            if found.st_blocks * 512 < found.st_size:
                entry.extents = tuple(_extents(fd, found.st_size))
                entry.kind = incremental_tar.SPARSE
            self._put(incremental_tar.encoded(entry))
            for offset, length in entry.extents:
                self._data(fd, offset, length)
            self._put(bytes(-entry.data_bytes % incremental_tar.BLOCK))
        finally:
            os.close(fd)

    def _data(self, fd: int, offset: int, length: int) -> None:
        while length:
            data = os.pread(fd, min(_CHUNK, length), offset) or bytes(min(_CHUNK, length))  # the file became shorter
            self._put(data)
            offset += len(data)
            length -= len(data)

    def _entry(self, path: bytes, kind: bytes, info: os.stat_result) -> ChangedFile:
        return ChangedFile(self._inside(path), kind, stat.S_IMODE(info.st_mode), info.st_mtime_ns)

    def _inside(self, path: bytes) -> bytes:
        return path[len(self._top) :].lstrip(b"/")

    def _put(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise TooManyChanges(f"they need more than the {self._limit} bytes of a snapshot")
        self._write(data)

    def _skip(self, path: bytes, error: OSError) -> None:
        """Leave a file out that cannot be read. A file that is gone by now counts as deleted."""
        if isinstance(error, BrokenPipeError):
            raise error
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            self._leave_out(path)

    def _leave_out(self, path: bytes) -> None:
        self.left_out_count += 1
        if len(self.left_out) < 10:
            self.left_out.append(path[-200:].decode("utf-8", "backslashreplace"))


def _names(path: bytes) -> list[bytes]:
    names: list[bytes] = []
    size = 0
    with os.scandir(path) as found:
        for one in found:
            names.append(one.name)
            size += len(one.name)
            if len(names) > _MOST_NAMES or size > _MOST_NAME_BYTES:
                name = path[-200:].decode("utf-8", "backslashreplace")
                raise TooManyChanges(
                    f"{name} has more than {_MOST_NAMES} files, or more than {_MOST_NAME_BYTES} bytes of names"
                )
    return sorted(names)


def _is_empty(path: bytes) -> bool:
    try:
        with os.scandir(path) as found:
            return next(found, None) is None
    except OSError:
        return False


def _chmod(path: bytes, mode: int) -> None:
    try:
        os.chmod(path, mode)
    except OSError:
        pass  # the folder is gone


def _extents(fd: int, size: int) -> Iterator[Extent]:
    """Yield the parts of a file that have data, and an empty part at the end."""
    at = 0
    for _ in range(_MOST_EXTENTS):
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # there is only a hole
            break
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start >= at:
            break
        yield start, at - start
    else:
        yield at, size - at
    yield size, 0
