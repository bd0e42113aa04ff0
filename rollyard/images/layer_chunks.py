"""Unpacked bytes of a layer's file: gzip, zstd or plain. The first bytes show which."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import zstandard

from rollyard.images.tar_stream import BrokenArchive

_READ = 1 << 18
_CHUNK = 1 << 20
_AHEAD = 4
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPED = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""Starts of zstd's frames without content (RFC 8878, skippable frames). A file may begin with one."""
_MOST_WINDOW = 128 << 20
"""Greatest zstd window in bytes, so memory is bounded."""


def layer_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a layer's bytes. Raises BrokenArchive for damaged data."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(_GZIP):
        return in_thread(_inflated(file))
    if start.startswith((_ZSTD, *_SKIPPED)):
        return in_thread(_from_zstd(file))
    return _plain(file)


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _inflated(file: BinaryIO) -> Iterator[bytes]:
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    data = b""
    try:
        while data or (data := file.read(_READ)):
            chunk = stream.decompress(data, _CHUNK)
            data = stream.unconsumed_tail
            if stream.eof:
                data = (stream.unused_data or file.read(_READ)).lstrip(b"\0")  # gzip allows zeros after its end
                stream = zlib.decompressobj(16 + zlib.MAX_WBITS) if data else stream
            if chunk:
                yield chunk
        if not stream.eof:
            raise BrokenArchive("its gzip data ends too early")
    except zlib.error:
        raise BrokenArchive("its gzip data is damaged") from None


def _from_zstd(file: BinaryIO) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(file, read_across_frames=True)
    try:
        while chunk := reader.read(_CHUNK):
            yield chunk
    except zstandard.ZstdError:
        raise BrokenArchive("its zstd data is damaged") from None


def in_thread(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same chunks, which a thread makes in advance."""
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, chunks, None) for _ in range(_AHEAD))
        while (chunk := coming.popleft().result()) is not None:
            coming.append(thread.submit(next, chunks, None))
            yield chunk
