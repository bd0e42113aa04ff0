"""Packs a folder as a flat image (`flat_image.py`)."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import zstandard

from rollyard.images.flat_image import (
    FRAME_BYTES,
    FlatIndex,
    FlatList,
    Frame,
    packed_index,
    packed_list,
    skippable,
)

LEVEL = -1
"""Level of zstd. Each node needs 25 percent more time to unpack and verify level 1, and its file is 13 percent shorter."""
_THREADS = 4
_BLOCK = 512
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s247x")
_MOST_OCTAL = 8**11

T = TypeVar("T")


def pack(root: str, config: dict[str, Any], file: BinaryIO) -> None:
    """Write the folder `root`, in which nobody writes, and the image's configuration to a file."""
    packer, frames = _Packer(os.fsencode(root)), []
    with ThreadPoolExecutor(_THREADS) as threads:
        for data, size, sha256 in _ahead(threads, _compress, packer.pieces()):
            file.write(data)
            frames.append(Frame(len(data), size, sha256))
    data, listed = packed_list(packer.files)
    file.write(skippable(data))
    file.write(packed_index(FlatIndex(config, frames, listed)))


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
        self.files = FlatList([], [], [], [])
        self._first_names: dict[int, str] = {}
        """inode -> first name of a file that has several."""
        self._data = bytearray()
        self._cut = 0
        """Bytes of the archive that have been cut off as pieces."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive in pieces. Afterwards `files` is complete."""
        for name, info in _walk(self._root, b""):
            kind = stat.S_IFMT(info.st_mode)
            text, mode, mtime = name.decode("utf-8", "surrogateescape"), stat.S_IMODE(info.st_mode), info.st_mtime_ns
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


def _walk(root: bytes, below: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield the name and the state of all that is below a folder, sorted, each folder before what is in it."""
    with os.scandir(root + b"/" + below if below else root) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        name, info = below + b"/" + entry.name if below else entry.name, entry.stat(follow_symlinks=False)
        yield name, info
        if stat.S_ISDIR(info.st_mode):
            yield from _walk(root, name)


def _header(name: bytes, info: os.stat_result, kind: bytes, size: int = 0, link: bytes = b"") -> bytes:
    """Return the header of a file in GNU's format. Python's own `tarfile` takes ten times as long."""
    long = b"".join(_long(flag, text) for flag, text in ((b"L", name), (b"K", link)) if len(text) > 100)
    return long + _block(name, info.st_mode & 0o7777, size, int(info.st_mtime), kind, link)


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
