"""An unpacked layer as one file of the shared tier: a tar archive in zstd, which other programs can unpack too. It has what the
layer adds to those below it, and whiteouts in the form of OCI's layers.

The archive is cut into frames, so several threads compress it and several processes unpack it. A file that fits into a
frame lies in one. Two more frames, which zstd skips, come last. The first has the list of all files, so that nobody has to
look for them in the archive. The second lists the length and the sha256 of each frame. So a file that is incomplete or
damaged is always seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import BinaryIO, NamedTuple

import zstandard

FRAME_BYTES = 1 << 20
"""Greatest number of unpacked bytes of a frame that is written now."""
MOST_FRAME_BYTES = 8 << 20
_FORMAT = 2
"""Number of this form of a file. Files of another one are made again."""
_SKIPPABLE = 0x184D2A5E
_HEAD = struct.Struct("<II")
_END = struct.Struct("<I32s8s")
"""Length of the index, its sha256, and a mark."""
_MARK = b"RLYDFLT1"
_MOST_INDEX = 64 << 20
_MOST_LIST = 1 << 30
_MOST_HEAD = 1 << 20
_DECOMPRESSOR = zstandard.ZstdDecompressor()


class BrokenFlatLayer(Exception):
    """A file that is incomplete or damaged. `str()` is the end of a sentence about it."""


class IncompleteFlatLayer(BrokenFlatLayer):
    """A file without its end. On a shared folder that lags, the end may still come."""


class Frame(NamedTuple):
    length: int
    """Bytes in the file."""
    size: int
    """Bytes of the archive."""
    sha256: str
    """Digest of the bytes in the file."""


class FlatIndex(NamedTuple):
    frames: list[Frame]
    listed: Frame
    """Frame of the list of files, which comes after `frames`."""


class FlatList(NamedTuple):
    """All files of a layer. Names are below the root. Times are in nanoseconds."""

    folders: list[tuple[str, int, int]]
    """Name, mode and time. A folder comes before what is in it."""
    files: list[tuple[str, int, int, int, int]]
    """Name, mode, time, size, and the place of the content in the archive, in ascending order."""
    links: list[tuple[str, str, int]]
    """Name, target and time of each symbolic link."""
    names: list[tuple[str, str]]
    """Further name of a file, and the name with which the file is in `files`."""
    whiteouts: list[str]
    """Names at which the layer hides what the layers below have."""


def skippable(data: bytes) -> bytes:
    return _HEAD.pack(_SKIPPABLE, len(data)) + data


def packed_list(files: FlatList) -> tuple[bytes, Frame]:
    """Return the bytes of a list, without the head of their frame, and their description."""
    plain = json.dumps(files).encode()
    data = zstandard.ZstdCompressor(level=1).compress(plain)
    return data, Frame(len(data), len(plain), hashlib.sha256(data).hexdigest())


def packed_index(index: FlatIndex) -> bytes:
    """Return the last frame of a file."""
    data = json.dumps({"format": _FORMAT, **index._asdict()}).encode()
    return skippable(data + _END.pack(len(data), hashlib.sha256(data).digest(), _MARK))


def read_index(file: BinaryIO) -> FlatIndex:
    """Raises BrokenFlatLayer."""
    total = file.seek(0, os.SEEK_END)
    file.seek(max(0, total - _END.size))
    end = file.read()
    if len(end) != _END.size:
        raise IncompleteFlatLayer("it is incomplete")
    length, digest, mark = _END.unpack(end)
    if mark != _MARK or length > min(total, _MOST_INDEX):
        raise IncompleteFlatLayer("it is incomplete")
    file.seek(total - _END.size - length)
    data = file.read(length)
    if hashlib.sha256(data).digest() != digest:
        raise BrokenFlatLayer("it is damaged")
    try:
        index = json.loads(data)
        if index.get("format") != _FORMAT:
            raise BrokenFlatLayer("another version of Rollyard made it")
        return FlatIndex([Frame(*one) for one in index["frames"]], Frame(*index["listed"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BrokenFlatLayer("it is damaged") from None


def read_list(file: int, index: FlatIndex) -> FlatList:
    """Raises BrokenFlatLayer."""
    at = sum(frame.length for frame in index.frames) + _HEAD.size
    return FlatList(*json.loads(read_frame(file, at, index.listed, _MOST_LIST)))


def read_frame(file: int, at: int, frame: Frame, most: int = MOST_FRAME_BYTES) -> bytes:
    """Return the unpacked bytes of a frame at a place of the file, verified. Raises BrokenFlatLayer."""
    if not 0 <= frame.length <= most + _MOST_HEAD:
        raise BrokenFlatLayer("it is damaged")
    data = os.pread(file, frame.length, at)
    if len(data) != frame.length or hashlib.sha256(data).hexdigest() != frame.sha256:
        raise BrokenFlatLayer("it is damaged")
    try:
        if frame.size > most or zstandard.frame_content_size(data) != frame.size:
            raise BrokenFlatLayer("it is damaged")
        return _DECOMPRESSOR.decompress(data)
    except zstandard.ZstdError:
        raise BrokenFlatLayer("it is damaged") from None
