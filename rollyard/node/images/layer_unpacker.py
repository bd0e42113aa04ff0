"""Layers of an OCI image, unpacked one over the other into a folder, without root and safely.

No path leaves the folder: symbolic links of folders are resolved here, as if the folder were the root file system.
Only this process writes into the folder, so nothing changes between a check and its use.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress

from rollyard.node.images.tar_stream import BrokenArchive, ByteStream, TarEntry, clean_path, entries, skip_padding

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_MOST_LINKS = 40
_MOST_DEPTH = 200
"""Greatest depth of folders. Python's functions on trees of folders are recursive."""
_BLOCK = 4096
"""Least number of bytes that a file counts."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TooBig(Exception):
    """The image needs more bytes than the limit."""


class LayerUnpacker:
    """Unpacks layers into the folder `root`, which exists. The umask must be 0.

    Owners, extended attributes, setuid bits, devices, fifos and sockets are left out. The owner can read and write all.
    """

    def __init__(self, root: str, limit_bytes: int) -> None:
        self._root = os.fsencode(root)
        self._limit = limit_bytes
        self.bytes = 0
        """Bytes on disk, with deleted files."""
        self._folders: dict[bytes, bytes] = {b"": self._root}
        """Path in a layer -> real folder, which is below the root and has no symbolic link in it."""
        self._made: set[bytes] = set()
        """Real paths that the present layer has made. Its whiteouts are meant for the layers below."""
        self._above_made: set[bytes] = set()
        """Folders above the paths in `_made`."""
        self._folder_times: dict[bytes, float] = {}

    def apply(self, chunks: Iterator[bytes]) -> None:
        """Unpack one layer, a tar archive. Raises BrokenArchive, TooBig and OSError."""
        stream = ByteStream(chunks)
        self._made, self._above_made = set(), set()
        for entry in entries(stream):
            self._one(entry, stream)

    def finish(self) -> None:
        """Set the times of the folders. Nothing can be applied afterwards."""
        real = {self._root: True}
        for path, mtime in self._folder_times.items():
            if self._is_real_folder(path, real):
                _set_time(path, mtime)

    def _one(self, entry: TarEntry, stream: ByteStream) -> None:
        above, _, base = clean_path(entry.name).rpartition(b"/")
        if not base:  # the root folder itself
            _skip(stream, entry.size)
            return
        folder = self._folders.get(above) or self._folder(above)
        if base.startswith(_WHITEOUT):
            _skip(stream, entry.size)
            self._whiteout(folder, base)
            return
        path = folder + b"/" + base
        self._count(entry.size)
        match entry.kind:
            case b"0":
                self._file(path, entry, stream)
            case b"5":
                self._make_folder(path, entry)
            case b"2":
                self._link(path, lambda: os.symlink(entry.link, path))
                _set_time(path, entry.mtime)
            case b"1":
                target_above, _, target = clean_path(entry.link).rpartition(b"/")
                source = self._folder(target_above) + b"/" + target
                if source != path:
                    self._link(path, lambda: os.link(source, path, follow_symlinks=False))
            case _:
                _skip(stream, entry.size)
                return
        self._made.add(path)
        while (path := os.path.dirname(path)) != self._root and path not in self._above_made:
            self._above_made.add(path)

    def _is_real_folder(self, path: bytes, known: dict[bytes, bool]) -> bool:
        """Return whether the path still leads to a folder below the root: a later entry may have put a link into it."""
        unknown = []
        while path not in known:
            unknown.append(path)
            path = os.path.dirname(path)
        for below in reversed(unknown):
            known[below] = known[path] and not os.path.islink(below) and os.path.isdir(below)
            path = below
        return known[path]

    def _count(self, size: int) -> None:
        self.bytes += max(_BLOCK, size)
        if self.bytes > self._limit:
            raise TooBig

    def _file(self, path: bytes, entry: TarEntry, stream: ByteStream) -> None:
        mode = entry.mode & 0o777 | 0o600
        try:
            file = os.open(path, _NEW_FILE, mode)
        except FileExistsError:
            self._remove(path)
            file = os.open(path, _NEW_FILE, mode)
        try:
            stream.give(entry.size, lambda part: _write(file, part))
            _set_time(file, entry.mtime)
        finally:
            os.close(file)
        skip_padding(stream, entry.size)

    def _make_folder(self, path: bytes, entry: TarEntry) -> None:
        mode = entry.mode & 0o1777 | 0o700
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, mode)
            else:
                self._remove(path)
                os.mkdir(path, mode)
        self._folder_times[path] = entry.mtime

    def _link(self, path: bytes, make: Callable[[], None]) -> None:
        try:
            try:
                make()
            except FileExistsError:
                self._remove(path)
                make()
        except FileNotFoundError:
            raise BrokenArchive("it has a hard link to a file that is not there") from None

    def _whiteout(self, folder: bytes, base: bytes) -> None:
        if base == _OPAQUE:
            for name in os.listdir(folder):
                path = folder + b"/" + name
                if path not in self._made and path not in self._above_made:
                    self._remove(path)
            return
        name = base.removeprefix(_WHITEOUT)
        if name.startswith(_WHITEOUT) or name in (b"", b".", b".."):
            return
        path = folder + b"/" + name
        if path not in self._made and os.path.lexists(path):
            self._remove(path)

    def _remove(self, path: bytes) -> None:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        if not stat.S_ISREG(mode):
            self._folders = {b"": self._root}  # a resolved path may have led through it

    def _folder(self, path: bytes) -> bytes:
        """Return the real folder of a path in a layer. Missing folders are made."""
        real, links = self._root, 0
        left = [part for part in reversed(path.split(b"/")) if part]
        while left:
            part = left.pop()
            if part in (b".", b".."):
                if part == b".." and real != self._root:
                    real = os.path.dirname(real)
                continue
            below = real + b"/" + part
            if below.count(b"/") > self._root.count(b"/") + _MOST_DEPTH:
                raise BrokenArchive(f"it has folders nested more than {_MOST_DEPTH} deep")
            try:
                mode = os.lstat(below).st_mode
            except FileNotFoundError:
                self._count(0)
                os.mkdir(below, 0o755)
                real = below
                continue
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MOST_LINKS:
                    raise BrokenArchive("it has a loop of symbolic links")
                target = os.readlink(below)
                if target.startswith(b"/"):
                    real = self._root
                left += [piece for piece in reversed(target.split(b"/")) if piece]
            elif stat.S_ISDIR(mode):
                real = below
            else:
                raise BrokenArchive("it has a file below another file")
        self._folders[path] = real
        return real


def _write(file: int, part: memoryview) -> None:
    while part:
        part = part[os.write(file, part) :]


def _skip(stream: ByteStream, size: int) -> None:
    stream.give(size, lambda part: None)
    skip_padding(stream, size)


def _set_time(path: bytes | int, mtime: float) -> None:
    with suppress(OverflowError, ValueError):  # a header may say `inf` and `nan`
        if isinstance(path, int):
            os.utime(path, (mtime, mtime))
        else:
            os.utime(path, (mtime, mtime), follow_symlinks=False)
