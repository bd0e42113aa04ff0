"""Packs an unpacked layer (`flat_layer.py`).

A whole layer has links to all files of the layers below. Only its difference to them is packed: a file that is no such link,
with all its names, and whiteouts for what it lacks.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import zstandard

from rollyard.images.flat_layer import (
    FRAME_BYTES,
    FlatIndex,
    FlatList,
    Frame,
    packed_index,
    packed_list,
    skippable,
)
from rollyard.images.layer_stack import LayerStack

LEVEL = -1
"""Level of zstd. Each node needs 25 percent more time to unpack and verify level 1, and its file is 13 percent shorter."""
_THREADS = 4
_BLOCK = 512
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s247x")
_MOST_OCTAL = 8**11
_ROUNDING_NS = 1000
"""Greatest difference of the times of a folder and of its copy, which is set as a floating-point number."""

T = TypeVar("T")

_Change = tuple[bytes, os.stat_result | None]
"""Name and state of a file; None for a whiteout."""


def pack(root: str, file: BinaryIO, below: LayerStack | None = None) -> int:
    """Write the folder `root` of a layer, in which nobody writes, to a file. `below`: the layers below, if it is whole. Return
    the number of files and folders in `root`."""
    folder = os.fsencode(root)
    there = dict(_walk(folder))
    changes = there.items() if below is None else _differences(there, below)
    packer, frames = _Packer(folder), []
    with ThreadPoolExecutor(_THREADS) as threads:
        for data, size, sha256 in _ahead(threads, _compress, packer.pieces(changes)):
            file.write(data)
            frames.append(Frame(len(data), size, sha256))
    data, listed = packed_list(packer.files)
    file.write(skippable(data))
    file.write(packed_index(FlatIndex(frames, listed)))
    return len(there)


def _ahead(threads: ThreadPoolExecutor, work: Callable[[Any], T], jobs: Iterator[Any]) -> Iterator[T]:
    """Yield the results in order. A few of them are made in advance."""
    under_way: list[Future[T]] = []
    for job in jobs:
        under_way.append(threads.submit(work, job))
        if len(under_way) > 2 * _THREADS:
            yield under_way.pop(0).result()
    for done in under_way:
        yield done.result()


def _compress(piece: bytes) -> tuple[bytes, int, str]:
    data = zstandard.ZstdCompressor(level=LEVEL).compress(piece)
    return data, len(piece), hashlib.sha256(data).hexdigest()


class _Packer:
    def __init__(self, root: bytes) -> None:
        self._root = root
        self.files = FlatList([], [], [], [], [])
        self._first_names: dict[int, str] = {}
        """inode -> first name of a file that has several."""
        self._data = bytearray()
        self._cut = 0
        """Bytes of the archive that have been cut off as pieces."""

    def pieces(self, changes: Iterable[_Change]) -> Iterator[bytes]:
        """Yield the archive in pieces. Afterwards `files` is complete."""
        for name, info in changes:
            text = name.decode("utf-8", "surrogateescape")
            if info is None or stat.S_ISCHR(info.st_mode):
                self.files.whiteouts.append(text)
                above, _, base = name.rpartition(b"/")
                self._data += _header(b"%b/.wh.%b" % (above, base) if above else b".wh." + base, None, b"0")
                yield from self._full()
                continue
            kind, mode, mtime = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), info.st_mtime_ns
            if kind == stat.S_IFDIR:
                self.files.folders.append((text, mode, mtime))
                self._data += _header(name + b"/", info, b"5")
            elif kind == stat.S_IFLNK:
                target = os.readlink(self._root + b"/" + name)
                self.files.links.append((text, target.decode("utf-8", "surrogateescape"), mtime))
                self._data += _header(name, info, b"2", link=target)
            elif kind == stat.S_IFREG:
                first = self._first_names.setdefault(info.st_ino, text) if info.st_nlink > 1 else text
                if first is not text:
                    self.files.names.append((text, first))
                    self._data += _header(name, info, b"1", link=first.encode("utf-8", "surrogateescape"))
                    continue
                if self._data and len(self._data) + _BLOCK + info.st_size > FRAME_BYTES:
                    yield self._take(len(self._data))
                self._data += _header(name, info, b"0", info.st_size)
                self.files.files.append((text, mode, mtime, info.st_size, self._cut + len(self._data)))
                yield from self._content(name, info.st_size)
            yield from self._full()
        self._data += bytes(2 * _BLOCK)
        yield self._take(len(self._data))

    def _content(self, name: bytes, size: int) -> Iterator[bytes]:
        with open(os.open(self._root + b"/" + name, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
            left = size
            while left:
                part = file.read(min(left, FRAME_BYTES))
                if not part:
                    raise OSError(f"{os.fsdecode(name)} became shorter")
                self._data += part
                left -= len(part)
                yield from self._full()
        self._data += bytes(-size % _BLOCK)

    def _full(self) -> Iterator[bytes]:
        while len(self._data) >= FRAME_BYTES:
            yield self._take(FRAME_BYTES)

    def _take(self, count: int) -> bytes:
        piece = bytes(memoryview(self._data)[:count])
        del self._data[:count]
        self._cut += count
        return piece


def _walk(root: bytes, below: bytes = b"") -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield the name and the state of all that is below a folder, sorted, each folder before what is in it."""
    with os.scandir(root + b"/" + below if below else root) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        name, info = below + b"/" + entry.name if below else entry.name, entry.stat(follow_symlinks=False)
        yield name, info
        if stat.S_ISDIR(info.st_mode):
            yield from _walk(root, name)


def _differences(there: Mapping[bytes, os.stat_result], below: LayerStack) -> list[_Change]:
    """Return what a whole layer has that is no link to a file of the layers below, in the order of `_walk`, and what it lacks.
    Above each of them are its folders. `there`: all that it has."""
    places, names = dict(below.walk()), dict[int, list[bytes]]()
    for name, info in there.items():
        if not stat.S_ISDIR(info.st_mode):
            names.setdefault(info.st_ino, []).append(name)
    found: dict[bytes, os.stat_result | None] = {}
    for name, info in there.items():
        if name not in places or _differs(info, os.lstat(places[name])):
            found |= {each: there[each] for each in (name, *names.get(info.st_ino, ()))}  # they stay names of one file
    for name in places:
        above = name.rpartition(b"/")[0]
        if name not in there and (not above or (above in there and stat.S_ISDIR(there[above].st_mode))):
            found[name] = None
    for name in list(found):
        while name := name.rpartition(b"/")[0]:
            found.setdefault(name, there[name])
    return sorted(found.items(), key=lambda one: one[0].split(b"/"))


def _differs(info: os.stat_result, other: os.stat_result) -> bool:
    if stat.S_ISDIR(info.st_mode) and stat.S_ISDIR(other.st_mode):
        return info.st_mode != other.st_mode or abs(info.st_mtime_ns - other.st_mtime_ns) > _ROUNDING_NS
    return (info.st_dev, info.st_ino) != (other.st_dev, other.st_ino)


def _header(name: bytes, info: os.stat_result | None, kind: bytes, size: int = 0, link: bytes = b"") -> bytes:
    """Return the header of a file in GNU's format. Python's own `tarfile` takes ten times as long."""
    long = b"".join(_long(flag, text) for flag, text in ((b"L", name), (b"K", link)) if len(text) > 100)
    mode, mtime = (0, 0) if info is None else (info.st_mode & 0o7777, int(info.st_mtime))
    return long + _block(name, mode, size, mtime, kind, link)


def _long(kind: bytes, text: bytes) -> bytes:
    size = len(text) + 1
    return _block(b"././@LongLink", 0, size, 0, kind, b"") + text + bytes(-size % _BLOCK + 1)


def _block(name: bytes, mode: int, size: int, mtime: int, kind: bytes, link: bytes) -> bytes:
    length = b"%011o\0" % size if size < _MOST_OCTAL else b"\x80" + size.to_bytes(11, "big")
    block = bytearray(
        _HEADER.pack(
            name, b"%07o\0" % mode, b"0000000\0", b"0000000\0", length, b"%011o\0" % min(max(0, mtime), _MOST_OCTAL - 1),
            b"        ", kind, link, b"ustar  \0",
        )
    )  # fmt: skip
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
