"""An image as one file of the shared tier: a tar archive in zstd, which other programs can unpack too.

The archive is cut into frames of 4 MiB, so several threads compress and unpack it. A last frame, which zstd skips, lists
the length and the sha256 of each frame and carries the image's configuration. So a file that is incomplete or damaged is
always seen.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import zstandard

from rollyard.node.images.tar_stream import BrokenArchive

FRAME_BYTES = 4 << 20
THREADS = 4
LEVEL = 1
"""Level of zstd. Higher levels make the file a few percent shorter and take several times as long."""
_SKIPPABLE = 0x184D2A5E
_END = struct.Struct("<I32s8s")
"""Length of the list, its sha256, and a mark."""
_MARK = b"RLYDFLT1"
_MOST_INDEX = 64 << 20

T = TypeVar("T")


def pack(root: str, config: dict[str, Any], file: BinaryIO) -> None:
    """Write the folder `root` and the image's configuration to a file."""
    index: list[tuple[int, int, str]] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for frame, size in _ahead(threads, _compress, _tar_pieces(root)):
            file.write(frame)
            index.append((len(frame), size, hashlib.sha256(frame).hexdigest()))
    listed = json.dumps({"config": config, "frames": index}).encode()
    end = _END.pack(len(listed), hashlib.sha256(listed).digest(), _MARK)
    file.write(struct.pack("<II", _SKIPPABLE, len(listed) + len(end)) + listed + end)


def read_config(file: BinaryIO) -> dict[str, Any]:
    """Raises BrokenArchive."""
    config: dict[str, Any] = _read_index(file)["config"]
    return config


def flat_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the tar archive. Each piece is verified. Raises BrokenArchive."""
    frames = _read_index(file)["frames"]
    file.seek(0)
    with ThreadPoolExecutor(THREADS) as threads:
        yield from _ahead(threads, _unpack_frame, ((file.read(length), size, sha) for length, size, sha in frames))


def _read_index(file: BinaryIO) -> dict[str, Any]:
    total = file.seek(0, os.SEEK_END)
    file.seek(max(0, total - _END.size))
    end = file.read()
    if len(end) != _END.size:
        raise BrokenArchive("it is incomplete")
    length, digest, mark = _END.unpack(end)
    if mark != _MARK or length > min(total, _MOST_INDEX):
        raise BrokenArchive("it is incomplete")
    file.seek(total - _END.size - length)
    listed = file.read(length)
    if hashlib.sha256(listed).digest() != digest:
        raise BrokenArchive("it is damaged")
    index: dict[str, Any] = json.loads(listed)
    return index


def _ahead(threads: ThreadPoolExecutor, work: Callable[[Any], T], jobs: Iterator[Any]) -> Iterator[T]:
    """Yield the results in order. A few of them are made in advance."""
    under_way: list[Future[T]] = []
    for job in jobs:
        under_way.append(threads.submit(work, job))
        if len(under_way) > 2 * THREADS:
            yield under_way.pop(0).result()
    for done in under_way:
        yield done.result()


def _compress(piece: bytes) -> tuple[bytes, int]:
    return zstandard.ZstdCompressor(level=LEVEL).compress(piece), len(piece)


def _unpack_frame(frame: tuple[bytes, int, str]) -> bytes:
    data, size, sha = frame
    if hashlib.sha256(data).hexdigest() != sha:
        raise BrokenArchive("it is damaged")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def _tar_pieces(root: str) -> Iterator[bytes]:
    pieces = _Pieces()
    with tarfile.open(fileobj=pieces, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(os.listdir(root)):
            for path in _walk(os.path.join(root, name)):
                archive.add(path, os.path.relpath(path, root), recursive=False)
                yield from pieces.take(FRAME_BYTES)
    yield from pieces.take(1)


def _walk(path: str) -> Iterator[str]:
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for name in sorted(os.listdir(path)):
            yield from _walk(os.path.join(path, name))


class _Pieces(io.RawIOBase):
    """A file whose content is taken in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._length = 0

    def tell(self) -> int:
        return self._length

    def write(self, data: Any) -> int:
        self._data += data
        self._length += len(data)
        return len(data)

    def take(self, at_least: int) -> Iterator[bytes]:
        """Yield pieces of FRAME_BYTES, and a shorter last one if it has `at_least` bytes."""
        if len(self._data) < at_least:
            return
        data, self._data = memoryview(self._data), bytearray()
        while len(data) >= at_least:
            yield bytes(data[:FRAME_BYTES])
            data = data[FRAME_BYTES:]
        self._data += data
