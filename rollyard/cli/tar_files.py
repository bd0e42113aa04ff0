"""Files and folders as tar streams. A stream from a sandbox is hostile: an agent may have written every byte of it.

So nothing is written outside of a new folder beside the destination, nothing passes a symbolic link, and devices, owners
and setuid bits are left out. The copy gets its name when it is whole.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rollyard.core.errors import RollyardError
from rollyard.host.removed_folder import remove_folder
from rollyard.images.tar_stream import BrokenArchive, ByteStream, TarEntry, entries, skip_padding

CHUNK = 1 << 16
MOST_ENTRIES = 200_000
_BLOCK = 4096
"""Least number of bytes that an entry counts."""
_MOST_DEPTH = 200
"""Greatest depth of folders. Many programs cannot delete or read deeper ones."""
_MOST_REST = 1 << 20
"""Greatest number of bytes of a stream beyond twice those that its files count. A header with a long name takes less than its
file counts."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Note = Callable[[str], None]
"""Function that gets a sentence about something that is left out."""


def unpack(
    stream: BinaryIO,
    dest: Path,
    limit_bytes: int,
    note: Note,
    name: str = "",
    whole: Callable[[], bool] = lambda: True,
) -> bool:
    """Unpack a stream with one file or folder. If `dest` is a folder, the copy is made in it under `name`, else `dest` is the
    copy's name. Empty: nobody has chosen a name; the stream's own name is used if it replaces and hides nothing. `whole`
    tells at the end of the stream if its sender has sent everything: a stream that is cut between two files looks whole.

    Return False if the stream has no file; then the sandbox's side says why. Raises RollyardError if the stream is too large
    or not in order, if the destination exists and is not a file, or if it cannot be written. Then nothing is left.
    """
    try:
        return _unpack(stream, dest, limit_bytes, note, name, whole)
    except OSError as error:
        raise RollyardError(f"{dest} cannot be written: {error.strerror or error}") from None


def _unpack(stream: BinaryIO, dest: Path, limit_bytes: int, note: Note, name: str, whole: Callable[[], bool]) -> bool:
    beside = dest if dest.is_dir() else dest.parent
    if not beside.is_dir():
        raise RollyardError(f"there is no folder {beside}; make it, or name another destination")
    unpacked = Path(tempfile.mkdtemp(prefix=".rollyard-cp-", dir=beside))
    try:
        made = _Unpacker(unpacked, limit_bytes, note).unpack(_bounded(stream, 2 * limit_bytes + _MOST_REST))
        if not whole():
            raise RollyardError("the stream from the sandbox ended too early")
        if made is None:
            return False
        if not os.path.lexists(unpacked / made):
            raise RollyardError("the sandbox sent a device or a link to another place, which is not copied")
        target = dest / (name or made) if dest.is_dir() else dest
        if target.is_dir() and not target.is_symlink():
            raise RollyardError(f"{target} exists and is a folder; remove it, or name another destination")
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise RollyardError(f"{target} is a device or a pipe; name another destination")
        if (unpacked / made).is_dir() and os.path.lexists(target):
            raise RollyardError(f"{target} exists and is not a folder; remove it, or name another destination")
        if dest.is_dir() and not name and (made.startswith(".") or os.path.lexists(target)):
            raise RollyardError(f"the sandbox calls the copy {made!r}; name the file in the destination")
        os.replace(unpacked / made, target)
        return True
    except BrokenArchive as error:
        raise RollyardError(f"the stream from the sandbox cannot be unpacked: {error}") from None
    finally:
        remove_folder(unpacked)


def _bounded(stream: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """Yield the stream's bytes. Raises RollyardError if there are more: headers and what follows the last file may be endless
    too."""
    left = limit_bytes
    while chunk := stream.read(CHUNK):
        left -= len(chunk)
        if left < 0:
            raise RollyardError(
                "the stream from the sandbox does not end; copy a part of it, or write a larger --max-size"
            )
        yield chunk


class _Unpacker:
    """Unpacks one stream into an empty folder, in which only this process writes."""

    def __init__(self, root: Path, limit_bytes: int, note: Note) -> None:
        self._root = os.fsencode(root)
        self._limit = limit_bytes
        self._note = note
        self._bytes = self._count = 0
        self._folders: set[bytes] = set()
        """Folders of this stream. A path is accepted only if the folder above it is one of them."""
        self._files: set[bytes] = set()
        self._top: bytes | None = None

    def unpack(self, chunks: Iterator[bytes]) -> str | None:
        """Return the name of the stream's file or folder; None for an empty stream."""
        stream = ByteStream(chunks)
        if stream.at_end():
            return None
        for entry in entries(stream):
            self._one(entry, stream)
        while not stream.at_end():
            stream.drop_chunk()
        return os.fsdecode(self._top) if self._top is not None else None

    def _one(self, entry: TarEntry, stream: ByteStream) -> None:
        name = entry.name.rstrip(b"/")
        parts = name.split(b"/")
        above = b"/".join(parts[:-1])
        if self._top is None:
            self._top = parts[0]
        if any(part in (b"", b".", b"..") for part in parts) or (above and above not in self._folders):
            raise BrokenArchive(f"it has a path outside of its folder, {os.fsdecode(name)!r}")
        if len(parts) > _MOST_DEPTH:
            raise BrokenArchive(f"it has folders nested more than {_MOST_DEPTH} deep")
        if parts[0] != self._top or (not above and self._count):
            raise BrokenArchive("it has more than one file or folder")
        self._count += 1
        self._bytes += max(_BLOCK, entry.size)
        if self._bytes > self._limit or self._count > MOST_ENTRIES:
            raise RollyardError(
                f"the copy has more than {_size(self._limit)} or more than {MOST_ENTRIES} files; "
                "copy a part of it, or write a larger --max-size"
            )
        path = self._root + b"/" + name
        with suppress(FileExistsError):  # the first entry of a name counts
            self._make(path, name, entry, stream)

    def _make(self, path: bytes, name: bytes, entry: TarEntry, stream: ByteStream) -> None:
        match entry.kind:
            case b"0":
                self._file(path, entry, stream)
                self._files.add(name)
            case b"5":
                os.mkdir(path, entry.mode & 0o777 | 0o700)
                self._folders.add(name)
            case b"2" if self._stays_inside(name, entry.link):
                os.symlink(entry.link, path)
            case b"1" if entry.link in self._files:
                os.link(self._root + b"/" + entry.link, path, follow_symlinks=False)
            case _:
                link = f", a link to {os.fsdecode(entry.link)!r} outside of the copy," if entry.link else ""
                self._note(f"{os.fsdecode(name)!r}{link} is left out")

    def _stays_inside(self, name: bytes, link: bytes) -> bool:
        """Return whether a symbolic link can never lead out of the stream's folder.

        The kernel begins at the link's own folder. That is a real folder, `depth` folders below the top one, because this
        object made it and all folders above it. The leading `..` go up through real folders, at most to the top one. Every
        further part goes down: into a folder, or through another link of the copy, for which the same holds at the real
        place of that link. So no step leaves. A `..` after another part would be taken wherever a link had led, so no
        number of folders would be a limit for it.
        """
        depth = name.count(b"/") - 1
        parts = [part for part in link.split(b"/") if part not in (b"", b".")]
        ups = next((place for place, part in enumerate(parts) if part != b".."), len(parts))
        return bool(link) and not link.startswith(b"/") and ups <= depth and b".." not in parts[ups:]

    def _file(self, path: bytes, entry: TarEntry, stream: ByteStream) -> None:
        try:
            file = os.open(path, _NEW_FILE, entry.mode & 0o777 | 0o600)
        except FileExistsError:
            stream.give(entry.size, len)
            skip_padding(stream, entry.size)
            raise
        with open(file, "wb", buffering=0) as out:
            stream.give(entry.size, lambda part: _write(out.fileno(), part))
        skip_padding(stream, entry.size)
        with suppress(OSError, OverflowError, ValueError):
            os.utime(path, (entry.mtime, entry.mtime))


def pack(source: Path, stream: BinaryIO, limit_bytes: int, note: Note) -> None:
    """Write a file or a folder as a tar stream. Raises RollyardError if it cannot be read, and before anything is written if
    it is too large, or no file or folder."""
    try:
        _pack(source, stream, limit_bytes, note)
    except BrokenPipeError:
        raise  # nobody reads the stream any more
    except OSError as error:
        raise RollyardError(f"{error.filename or source} cannot be read: {error.strerror or error}") from None


def _pack(source: Path, stream: BinaryIO, limit_bytes: int, note: Note) -> None:
    top = Path(os.path.realpath(source))
    if not (top.is_file() or top.is_dir()):
        raise RollyardError(f"{source} is a device or a pipe, which is not copied")
    paths = [top, *sorted(top.rglob("*"))] if top.is_dir() else [top]
    total = sum(path.lstat().st_size for path in paths if not path.is_dir())
    if total > limit_bytes:
        raise RollyardError(
            f"{source} has {_size(total)}, and --max-size is {_size(limit_bytes)}; copy a part of it, or raise it"
        )
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                note(f"{path} is left out: it is not a file, folder or link")
                continue
            archive.add(
                path,
                os.path.join(top.name, os.path.relpath(path, top)).removesuffix("/."),
                recursive=False,
                filter=_anonymous,
            )


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _write(fd: int, part: memoryview) -> None:
    while part:
        part = part[os.write(fd, part) :]


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
