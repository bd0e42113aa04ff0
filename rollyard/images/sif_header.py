"""The place of the root file system in a `.sif` file, which is a SquashFS partition (the format's documentation:
github.com/apptainer/sif). Pure but for reading the file."""

from __future__ import annotations

import struct
from typing import BinaryIO

from rollyard.images.oci_manifest import machine

_MAGIC_AT, _MAGIC = 32, b"SIF_MAGIC\0"
_DESCRIPTORS = struct.Struct("<qq")
"""At byte 88 of the header: the number of descriptors, and the offset of the first."""
_DESCRIPTORS_AT = 88
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
"""Kind, whether it is used, three ids, offset, size, five numbers, name, and data that depends on the kind."""
_PARTITION = 0x4004
_PARTITION_DATA = struct.Struct("<ii3s")
"""File system, role, and architecture of a partition."""
_MAIN, _SQUASHFS = 2, 1
_FILE_SYSTEMS = {2: "an ext3 file system", 4: "raw data", 5: "an encrypted file system"}
_MACHINES = {
    b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"06": "ppc64le", b"11": "s390x", b"12": "riscv64",
}  # fmt: skip
_MOST = 4096
SQUASHFS_MAGIC = b"hsqs"


class UnusableFile(Exception):
    """A file that holds no root file system for this machine. `str()` is the end of a sentence about the image."""


def squashfs_offset(file: BinaryIO) -> int:
    """Return the offset of the SquashFS file system in a `.sif` or `.squashfs` file. Raises UnusableFile and OSError."""
    start = file.read(_DESCRIPTORS_AT + _DESCRIPTORS.size)
    if start.startswith(SQUASHFS_MAGIC):
        return 0
    if start[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or len(start) < _DESCRIPTORS_AT + _DESCRIPTORS.size:
        raise UnusableFile("it is neither a SIF nor a SquashFS file")
    count, offset = _DESCRIPTORS.unpack_from(start, _DESCRIPTORS_AT)
    if not 0 <= count <= _MOST or offset < 0:
        raise UnusableFile("its SIF header is damaged")
    file.seek(offset)
    table = file.read(count * _DESCRIPTOR.size)
    for values in _DESCRIPTOR.iter_unpack(table[: len(table) // _DESCRIPTOR.size * _DESCRIPTOR.size]):
        kind, used, at, extra = values[0], values[1], values[5], values[-1]
        file_system, role, architecture = _PARTITION_DATA.unpack_from(extra)
        if kind == _PARTITION and used and role == _MAIN:
            _check(file, at, file_system, architecture[:2])
            return int(at)
    raise UnusableFile("its SIF header names no root file system (an OCI-SIF of SingularityCE has none)")


def _check(file: BinaryIO, at: int, file_system: int, architecture: bytes) -> None:
    if file_system != _SQUASHFS:
        found = _FILE_SYSTEMS.get(file_system, "an unknown file system")
        raise UnusableFile(f"it holds {found}, not SquashFS: build it again with Apptainer, without encryption")
    named = _MACHINES.get(architecture)
    if named != machine():
        found = f"linux/{named}" if named else "another machine"
        raise UnusableFile(f"it is built for {found}, not for linux/{machine()}")
    file.seek(at)
    if file.read(len(SQUASHFS_MAGIC)) != SQUASHFS_MAGIC:
        raise UnusableFile("its SquashFS partition is damaged or incomplete")
