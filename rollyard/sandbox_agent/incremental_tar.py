"""Incremental archives of GNU tar: entries that a sandbox's changed files become, and back.

`tar --extract --incremental` reads such an archive too. An entry of a folder lists the names that the folder has; names
that are not listed are deleted when the archive is applied. Each entry has its time in nanoseconds and a long name in a
PAX header. Holes of sparse files are left out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

BLOCK = 512
FILE, HARD_LINK, SYMLINK, FIFO, FOLDER, SPARSE, _PAX = b"0", b"1", b"2", b"6", b"D", b"S", b"x"
WRITTEN, FOLDER_WRITTEN, KEPT = b"Y", b"D", b"N"
"""Marks of the names in a folder's list: a file of this archive, a folder of this archive, unchanged."""
END = bytes(2 * BLOCK)
_MAGIC = b"ustar  \0"
_MOST_HEADER_BYTES = 64 << 20
_MAP_ENTRIES = 21
"""Extents in one block of a sparse file's map, after the first four extents, which the header has."""

Extent: TypeAlias = "tuple[int, int]"
"""Offset and length of data in a file."""


class BrokenChanges(Exception):
    """An archive that cannot be applied. `str()` is the end of a sentence about it."""


class ChangedFile:
    """One entry."""

    def __init__(self, path: bytes, kind: bytes, mode: int, mtime_ns: int) -> None:
        self.path = path
        """Path without the leading slash; empty for the root folder."""
        self.kind = kind
        self.mode = mode
        self.mtime_ns = mtime_ns
        self.size = 0
        """Length of a file, with its holes."""
        self.link = b""
        self.extents: Sequence[Extent] = ()
        """Data of a file, in order."""
        self.names: Sequence[tuple[bytes, bytes]] = ()
        """Mark and name of each file in a folder."""

    @property
    def data_bytes(self) -> int:
        return sum(length for _, length in self.extents)


def encoded(entry: ChangedFile) -> bytes:
    """Return the entry's headers. The data of a file follows them, padded to whole blocks."""
    name = entry.path or b"."
    records = _record(b"mtime", b"%d.%09d" % divmod(entry.mtime_ns, 10**9))
    if len(name) > 100:
        records += _record(b"path", name)
    if len(entry.link) > 100:
        records += _record(b"linkpath", entry.link)
    body, more = b"", b""
    length = entry.data_bytes
    if entry.kind == FOLDER:
        body = b"".join(mark + one + b"\0" for mark, one in entry.names) + b"\0"
        length = len(body)
    elif entry.kind == SPARSE:
        more = _map(entry.extents[4:])
    head = _header(b"rollyard", _PAX, 0o644, len(records), 0) + padded(records)
    return (
        head
        + _header(name[:100], entry.kind, entry.mode, length, max(0, entry.mtime_ns // 10**9), entry)
        + more
        + padded(body)
    )


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _header(name: bytes, kind: bytes, mode: int, length: int, mtime: int, entry: ChangedFile | None = None) -> bytes:
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = b"%07o\0" % mode
    block[108:124] = b"0000000\0" * 2
    block[124:136] = _number(length)
    block[136:148] = _number(mtime)
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = _MAGIC
    if entry is not None:
        block[157 : 157 + len(entry.link[:100])] = entry.link[:100]
        if kind == SPARSE:
            for i, (offset, size) in enumerate(entry.extents[:4]):
                block[386 + 24 * i : 410 + 24 * i] = _number(offset) + _number(size)
            block[482] = len(entry.extents) > 4
            block[483:495] = _number(entry.size)
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _map(extents: Sequence[Extent]) -> bytes:
    blocks = bytearray()
    for start in range(0, len(extents), _MAP_ENTRIES):
        block = b"".join(_number(offset) + _number(size) for offset, size in extents[start : start + _MAP_ENTRIES])
        more = start + _MAP_ENTRIES < len(extents)
        blocks += block.ljust(24 * _MAP_ENTRIES, b"\0") + bytes([more]) + bytes(7)
    return bytes(blocks)


def _number(value: int) -> bytes:
    if value < 8**11:
        return b"%011o\0" % value
    return b"\x80" + value.to_bytes(11, "big")


def decoded(take: Callable[[int], bytes]) -> ChangedFile | None:
    """Read one entry's headers; None at the end of the archive. `take` returns exactly so many bytes, or raises
    BrokenChanges.

    Raises BrokenChanges for everything that `encoded` does not write.
    """
    block = take(BLOCK)
    if block == bytes(BLOCK):
        return None
    if block[156:157] != _PAX:
        raise BrokenChanges("it is not a snapshot")
    records = _records(_body(take, _value(block[124:136])))
    block = take(BLOCK)
    kind, length = block[156:157], _value(block[124:136])
    seconds, _, fraction = records.get(b"mtime", b"").partition(b".")
    if block[257:265] != _MAGIC or len(fraction) != 9 or not fraction.isdigit() or not seconds.lstrip(b"-").isdigit():
        raise BrokenChanges("it is not a snapshot")
    path = records.get(b"path", block[:100].rstrip(b"\0"))
    entry = ChangedFile(
        b"" if path == b"." else path, kind, _value(block[100:108]), int(seconds) * 10**9 + int(fraction)
    )
    if entry.path and any(part in (b"", b".", b"..") for part in entry.path.split(b"/")):
        raise BrokenChanges("it has an impossible file name")
    if kind in (HARD_LINK, SYMLINK):  # entries of folders are kept in memory
        entry.link = records.get(b"linkpath", block[157:257].rstrip(b"\0"))
    if kind == FILE:
        entry.size, entry.extents = length, ((0, length),)
    elif kind == SPARSE:
        entry.size = _value(block[483:495])
        entry.extents = _extents(block, take)
    elif kind == FOLDER:
        names = _body(take, length).split(b"\0")[:-2]
        entry.names = [(name[:1], name[1:]) for name in names]
    elif kind not in (HARD_LINK, SYMLINK, FIFO):
        raise BrokenChanges("it has a kind of file that no snapshot has")
    return entry


def _body(take: Callable[[int], bytes], length: int) -> bytes:
    if length > _MOST_HEADER_BYTES:
        raise BrokenChanges(f"it has a header of more than {_MOST_HEADER_BYTES} bytes")
    return take(length + -length % BLOCK)[:length]


def _records(data: bytes) -> dict[bytes, bytes]:
    records = {}
    while data:
        length = data.partition(b" ")[0]
        if not length.isdigit() or not len(length) + 3 < int(length) <= len(data):
            raise BrokenChanges("it has a damaged header")
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        records[key] = value
        data = data[int(length) :]
    return records


def _extents(block: bytes, take: Callable[[int], bytes]) -> list[Extent]:
    fields, more = block[386:482], block[482]
    while more:
        block = take(BLOCK)
        fields, more = fields + block[:504], block[504]
        if len(fields) > _MOST_HEADER_BYTES:
            raise BrokenChanges("it has a file with too many holes")
    found = [(fields[at : at + 12], fields[at + 12 : at + 24]) for at in range(0, len(fields), 24)]
    return [(_value(offset), _value(size)) for offset, size in found if offset != bytes(12)]


def _value(field: bytes) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if digits.strip(b"01234567"):
        raise BrokenChanges("it is not a snapshot")
    return int(digits, 8)
