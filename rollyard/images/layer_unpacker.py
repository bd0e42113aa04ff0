"""Layers of an OCI image, unpacked one over the other into a folder, without root and safely.

No path leaves the folder: symbolic links of folders are resolved here, as if the folder were the root file system.
Only this process writes into the folder, so nothing changes between a check and its use.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rollyard.images.tar_stream import BrokenArchive, ByteStream, TarEntry, clean_path, entries, skip_padding

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_ASIDE = b".wh..wh.aside"
"""Folder of the root while a layer is unpacked. No file of a layer has such a name: it begins as a whiteout's does."""
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
        self._links: dict[bytes, bytes] = {}
        """Names of the present layer's hard links -> targets. They are made last: a target may come later in the layer."""
        self._aside: dict[bytes, bytes] = {}
        """Real path of what a whiteout of the present layer has removed -> where it is until the layer's end, for a hard
        link of this layer."""
        self._folder_times: dict[bytes, float] = {}

    def apply(self, chunks: Iterator[bytes]) -> None:
        """Unpack one layer, a tar archive, whose whiteouts may stand anywhere in it. Raises BrokenArchive, TooBig and
        OSError."""
        stream = ByteStream(chunks)
        self._made, self._above_made, self._links = set(), set(), {}
        for entry in entries(stream):
            self._one(entry, stream)
        self._make_hard_links()
        if self._aside:
            shutil.rmtree(self._root + b"/" + _ASIDE)
            self._aside = {}

    def finish(self) -> None:
        """Set the times of the folders. Nothing can be applied afterwards."""
        real = {self._root: True}
        for path, mtime in self._folder_times.items():
            if self._is_real_folder(path, real):
                _set_time(path, mtime)

    def _one(self, entry: TarEntry, stream: ByteStream) -> None:
        name = clean_path(entry.name)
        above, _, base = name.rpartition(b"/")
        if not base or b"/.wh..wh." in b"/" + above:  # the root folder itself, or what a file system notes for itself
            _skip(stream, entry.size)
            return
        folder = self._folders.get(above) or self._made_folder(above)
        if base.startswith(_WHITEOUT):
            _skip(stream, entry.size)
            self._whiteout(folder, base)
            return
        path = folder + b"/" + base
        self._count(entry.size)
        self._links.pop(name, None)
        match entry.kind:
            case b"0":
                self._file(path, entry, stream)
            case b"5":
                self._make_folder(path, entry)
            case b"2":
                self._link(path, lambda: os.symlink(entry.link, path))
                _set_time(path, entry.mtime)
            case b"1":
                self._links[name] = entry.link
            case _:
                _skip(stream, entry.size)
                return
        self._made.add(path)
        while (path := os.path.dirname(path)) != self._root and path not in self._above_made:
            self._above_made.add(path)

    def _make_hard_links(self) -> None:
        """Make the links of the layer, a link to another link after that one. Paths are resolved only now: a later entry may
        have put a symbolic link into one."""
        waiting = {self._place(name): link for name, link in self._links.items()}
        for first in list(waiting):
            path, chain = first, list[tuple[bytes, bytes]]()
            while path in waiting:
                source = self._target(waiting.pop(path))
                chain.append((path, source))
                path = source
            for path, source in reversed(chain):
                if path != source:
                    self._hard_link(path, source)

    def _hard_link(self, path: bytes, source: bytes) -> None:
        try:
            if stat.S_ISDIR(os.lstat(source).st_mode):
                raise BrokenArchive("it has a hard link to a folder")
            self._link(path, lambda: os.link(source, path, follow_symlinks=False))
        except FileNotFoundError:
            raise BrokenArchive("it has a hard link to a file that is not there") from None

    def _place(self, name: bytes) -> bytes:
        above, _, base = name.rpartition(b"/")
        return (self._folders.get(above) or self._made_folder(above)) + b"/" + base

    def _target(self, link: bytes) -> bytes:
        """Return where the target of a hard link is, if there is one. A whiteout of this layer may have removed it."""
        name = clean_path(link)
        above, _, base = name.rpartition(b"/")
        folder = self._folders.get(above) or self._folder(above, make=False)
        if folder is not None:
            path = folder + b"/" + base
            return path if os.path.lexists(path) else self._aside.get(path, path)
        path, parts = self._root, name.split(b"/")
        for number, part in enumerate(parts, 1):
            path += b"/" + part
            if path in self._aside:
                return _without_links(self._aside[path], parts[number:])
        raise BrokenArchive("it has a hard link to a file that is not there")

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
            make()
        except FileExistsError:
            self._remove(path)
            make()

    def _whiteout(self, folder: bytes, base: bytes) -> None:
        if base == _OPAQUE:
            self._hide_below(folder)
            return
        name = base.removeprefix(_WHITEOUT)
        if name.startswith(_WHITEOUT) or name in (b"", b".", b".."):
            return
        self._hide(folder + b"/" + name)

    def _hide(self, path: bytes) -> None:
        """Put what the layers below have at a path aside. What the present layer has made there stays."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if path in self._made or path in self._above_made:
            if stat.S_ISDIR(mode):
                self._hide_below(path)
            return
        if not self._aside:
            os.mkdir(self._root + b"/" + _ASIDE, 0o700)
        aside = b"%b/%b/%d" % (self._root, _ASIDE, len(self._aside))
        os.rename(path, aside)
        self._aside[path] = aside
        self._forget_folders(mode)

    def _hide_below(self, folder: bytes) -> None:
        for name in os.listdir(folder):
            if name != _ASIDE:
                self._hide(folder + b"/" + name)

    def _remove(self, path: bytes) -> None:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self._forget_folders(mode)

    def _forget_folders(self, mode: int) -> None:
        """`mode`: of what was removed."""
        if not stat.S_ISREG(mode):
            self._folders = {b"": self._root}  # a resolved path may have led through it

    def _made_folder(self, path: bytes) -> bytes:
        """Return the real folder of a path in a layer. Missing folders are made."""
        folder = self._folder(path, make=True)
        assert folder is not None
        return folder

    def _folder(self, path: bytes, *, make: bool) -> bytes | None:
        """Return the real folder of a path in a layer; None if it is missing, and must not be made."""
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
                if not make:
                    return None
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


def _without_links(folder: bytes, below: Sequence[bytes]) -> bytes:
    """Return a path below a folder. Raises BrokenArchive if it leads through something that is not a folder."""
    for part in below:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise BrokenArchive("it has a hard link to a file that is not there")
        folder += b"/" + part
    return folder


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
