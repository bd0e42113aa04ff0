"""Layers of an OCI image, unpacked one over the other into a folder, without root and safely.

No path leaves the folder: symbolic links of folders are resolved here, as if the folder were the root file system.
Only this process writes into the folder, so nothing changes between a check and its use.

The layers below may be unpacked already, each in a folder of its own (`layer_stack.py`). Then the folder gets what the next
layer adds to them, and whiteouts for what it hides.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rollyard.images.layer_stack import LayerStack
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
_NO_DEVICES = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class TooBig(Exception):
    """The image needs more bytes than the limit."""


class NoWhiteouts(Exception):
    """The file system of the folder can hold no whiteout."""


class LayerUnpacker:
    """Unpacks layers into the folder `root`, which exists. The umask must be 0.

    Owners, extended attributes, setuid bits, devices, fifos and sockets are left out. The owner can read and write all.
    """

    def __init__(self, root: str, limit_bytes: int, below: LayerStack | None = None) -> None:
        """`below`: the layers below, if they are not unpacked into `root`. Then only one layer can be applied."""
        self._root = os.fsencode(root)
        self._limit = limit_bytes
        self._below = below or LayerStack(())
        self.bytes = 0
        """Bytes on disk, with deleted files."""
        self.linked: set[int] = set()
        """Inodes of the files that `link` has linked."""
        self._folders: dict[bytes, bytes] = {b"": self._root}
        """Path in a layer -> real folder, which is below the root and has no symbolic link in it."""
        self._followed: set[bytes] = set()
        """Paths of the symbolic links of the layers below that led to one of these folders."""
        self._made: set[bytes] = set()
        """Real paths that the present layer has made. Its whiteouts are meant for the layers below."""
        self._above_made: set[bytes] = set()
        """Folders above the paths in `_made`."""
        self._links: dict[bytes, bytes] = {}
        """Names of the present layer's hard links -> targets. They are made last: a target may come later in the layer."""
        self._aside: dict[bytes, bytes] = {}
        """Real path of what a whiteout of the present layer has removed -> where it is until the layer's end, for a hard
        link of this layer."""
        self._put = 0
        """Number of paths that were put aside."""
        self._copied: dict[bytes, bytes] = {}
        """File of the layers below -> its copy, which a hard link needs."""
        self._hidden: set[bytes] = set()
        """Paths at which a whiteout hides what the folders of the layers below have."""
        self._folder_times: dict[bytes, float] = {}

    def link(self, layers: LayerStack) -> None:
        """Begin with all files of unpacked layers, as hard links where the file system allows more of them."""
        for name, source in layers.walk():
            path = self._root + b"/" + name
            if layers.folders(name):
                self._copy_folder(source, path)
                continue
            try:
                os.link(source, path, follow_symlinks=False)
                self.linked.add(os.lstat(path).st_ino)
            except OSError:
                self._count(os.lstat(source).st_size)
                _copy(source, path)

    def apply(self, chunks: Iterator[bytes]) -> None:
        """Unpack one layer, a tar archive, whose whiteouts may stand anywhere in it. Raises BrokenArchive, TooBig,
        NoWhiteouts and OSError."""
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
        if path in self._followed:
            self._forget_folders(stat.S_IFLNK)
        self._links.pop(name, None)
        match entry.kind:
            case b"0":
                self._file(path, entry, stream)
            case b"5":
                self._make_folder(path, entry.mode & 0o1777 | 0o700)
                self._folder_times[path] = entry.mtime
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
                elif self._find(path) is None and self._below.find(self._inside(path)) is not None:
                    os.unlink(path)  # the link to its own name is a file of the layers below, which a whiteout hides

    def _hard_link(self, path: bytes, source: bytes) -> None:
        with suppress(FileNotFoundError):
            found = self._find(source) if self._is_own(source) else (source, os.lstat(source).st_mode)
            if found is not None:
                place, mode = found
                if stat.S_ISDIR(mode):
                    raise BrokenArchive("it has a hard link to a folder")
                if not self._is_own(place):
                    place = self._copied_file(place, source if self._is_own(source) else path)
                if path in self._followed:
                    self._forget_folders(stat.S_IFLNK)
                if place != path:
                    self._link(path, lambda: os.link(place, path, follow_symlinks=False))
                return
        raise BrokenArchive("it has a hard link to a file that is not there")

    def _copied_file(self, source: bytes, path: bytes) -> bytes:
        """Return the place of a copy of a file of the layers below. The copy is made at `path`, unless there is one."""
        if source not in self._copied:
            self._count(os.lstat(source).st_size)
            self._made_folder(os.path.dirname(self._inside(path)))
            self._link(path, lambda: _copy(source, path))
            self._copied[source] = path
        return self._copied[source]

    def _place(self, name: bytes) -> bytes:
        above, _, base = name.rpartition(b"/")
        return (self._folders.get(above) or self._made_folder(above)) + b"/" + base

    def _target(self, link: bytes) -> bytes:
        """Return where the target of a hard link is, if there is one. A whiteout of this layer may have removed it."""
        name = clean_path(link)
        above, _, base = name.rpartition(b"/")
        folder = self._folders.get(above) or self._folder(above, make=False)
        path = (folder or self._root + b"/" + above) + b"/" + base
        if folder is not None and self._find(path) is not None:
            return path
        removed = self._removed(path)
        if removed is None and folder is None:
            raise BrokenArchive("it has a hard link to a file that is not there")
        return removed or path

    def _removed(self, path: bytes) -> bytes | None:
        """Return where the file is that a whiteout of this layer has removed from a path; None if there is none."""
        parts = self._inside(path).split(b"/")
        for number in range(1, len(parts) + 1):
            above = b"/".join([self._root, *parts[:number]])
            if above in self._hidden:
                return self._below.find(self._inside(path))
            if above in self._aside:
                return _without_links(self._aside[above], parts[number:])
        return None

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

    def _make_folder(self, path: bytes, mode: int) -> None:
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, mode)
                return
            self._remove(path)
            os.mkdir(path, mode)
            for name in self._below.names(self._inside(path)):
                white_out(path + b"/" + name)

    def _copy_folder(self, source: bytes, path: bytes) -> None:
        """Make a folder of the layers below, so that something can be put into it."""
        info = os.stat(source)
        self._count(0)
        os.mkdir(path, stat.S_IMODE(info.st_mode))
        self._folder_times[path] = info.st_mtime

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
        """Remove what the layers below have at a path. What the present layer has made there stays."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            mode = 0
        if stat.S_ISCHR(mode):
            return
        made = path in self._made or path in self._above_made
        if made and mode:
            if stat.S_ISDIR(mode):
                self._hide_below(path)
            return
        if mode:
            self._put_aside(path, mode)
        if (hidden := self._below.find(self._inside(path))) is not None:
            white_out(path)
            self._forget_folders(os.lstat(hidden).st_mode)
            if not made:  # a hard link that this layer makes last is no file of a layer below
                self._hidden.add(path)

    def _put_aside(self, path: bytes, mode: int) -> None:
        folder = self._root + b"/" + _ASIDE
        if not self._aside:
            os.mkdir(folder, 0o700)
        self._put += 1
        aside = b"%b/%d" % (folder, self._put)
        os.rename(path, aside)
        self._aside.setdefault(path, aside)  # a folder that comes back for a whiteout below it may go once more
        self._forget_folders(mode)

    def _hide_below(self, folder: bytes) -> None:
        for name in {*os.listdir(folder), *self._below.names(self._inside(folder))}:
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
            self._followed.clear()

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
            found = self._find(below)
            if found is None:
                if not make:
                    return None
                self._count(0)
                self._make_folder(below, 0o755)
                real = below
                continue
            place, mode = found
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MOST_LINKS:
                    raise BrokenArchive("it has a loop of symbolic links")
                if place != below:
                    self._followed.add(below)
                target = os.readlink(place)
                if target.startswith(b"/"):
                    real = self._root
                left += [piece for piece in reversed(target.split(b"/")) if piece]
            elif stat.S_ISDIR(mode):
                if make and place != below:
                    self._copy_folder(place, below)
                real = below
            else:
                raise BrokenArchive("it has a file below another file")
        if make:
            self._folders[path] = real
        return real

    def _find(self, path: bytes) -> tuple[bytes, int] | None:
        """Return where the file at a path is, here or in a layer below, and its mode; None if there is none. The folders above
        it are known to be there."""
        try:
            mode = os.lstat(path).st_mode
            return None if stat.S_ISCHR(mode) else (path, mode)
        except FileNotFoundError:
            found = self._below.find(self._inside(path))
            return None if found is None else (found, os.lstat(found).st_mode)

    def _inside(self, path: bytes) -> bytes:
        return path[len(self._root) + 1 :]

    def _is_own(self, path: bytes) -> bool:
        return path.startswith(self._root + b"/")


def white_out(path: bytes) -> None:
    """Hide what the layers below have at a path. Raises NoWhiteouts and OSError."""
    try:
        os.mknod(path, stat.S_IFCHR, 0)
    except OSError as error:
        if error.errno in _NO_DEVICES:
            raise NoWhiteouts from None
        raise


def _without_links(folder: bytes, below: Sequence[bytes]) -> bytes:
    """Return a path below a folder. Raises BrokenArchive if it leads through something that is not a folder."""
    for part in below:
        if not os.path.isdir(folder) or os.path.islink(folder):
            raise BrokenArchive("it has a hard link to a file that is not there")
        folder += b"/" + part
    return folder


def _copy(source: bytes, path: bytes) -> None:
    """Copy a file or a symbolic link with its mode and time. Raises FileExistsError."""
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), path)
    else:
        with open(source, "rb") as old, open(os.open(path, _NEW_FILE, stat.S_IMODE(info.st_mode)), "wb") as new:
            shutil.copyfileobj(old, new)
    os.utime(path, ns=(info.st_mtime_ns, info.st_mtime_ns), follow_symlinks=False)


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
