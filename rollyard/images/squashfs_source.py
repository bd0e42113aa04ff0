"""`.squashfs` and `.sif` files, as a source of the cache. The program unsquashfs unpacks them, or else Apptainer.

The place of the root file system in a `.sif` file, which is a SquashFS partition (the format's documentation:
github.com/apptainer/sif). Pure but for reading the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import struct
from pathlib import Path
from typing import BinaryIO

from rollyard.core.errors import ImageUnavailable
from rollyard.core.regular_file import open_regular
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.images.base import FillRoom, ImageConfig, too_big
from rollyard.images.image_file import ImageFile
from rollyard.images.oci_manifest import machine
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.unpack import unpack_squashfs
from rollyard.kinds.values.image_reference import PathImage

_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SquashfsSource:
    shared = False

    def __init__(self, image: PathImage, resolved: ResolvedTags, limit_bytes: int) -> None:
        self._image = image
        self._path = Path(image.path)
        self._limit = limit_bytes
        self._file = ImageFile(image.text, self._path, "file", resolved)

    @property
    def name(self) -> str:
        return self._image.text

    async def key(self) -> str:
        """Return the sha256 of the file, which is read once for each of its contents. Raises ImageUnavailable."""
        return await self._file.digest(self._digest)

    def known(self) -> str | None:
        return self._file.known()

    async def fill(self, folder: Path, room: FillRoom) -> ImageConfig:
        """Raises ImageUnavailable and DiskFull."""
        identity, offset = self._file.identity(), await asyncio.to_thread(self._offset)
        program, path = self._unpacker()
        env = await unpack_squashfs(self.name, self._path, offset, (program, path), folder, room)
        self._file.check_unchanged(identity)
        config = ImageConfig(env=env)
        if config.fault is not None:
            raise ImageUnavailable(self.name, f"{config.fault}: build the image again", permanent=True)
        return config

    def _digest(self) -> str:
        self._offset()
        try:
            with open_regular(self._path) as file:
                if os.fstat(file.fileno()).st_size > self._limit:  # a sparse file may seem to have exabytes
                    raise too_big(self.name, self._limit)
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise ImageUnavailable(self.name, f"it cannot be read: {error.strerror}") from None

    def _offset(self) -> int:
        try:
            with open_regular(self._path) as file:
                return squashfs_offset(file)
        except UnusableFile as error:
            raise ImageUnavailable(self.name, str(error), permanent=True) from None
        except OSError as error:
            raise ImageUnavailable(self.name, f"it cannot be read: {error.strerror}") from None

    def _unpacker(self) -> tuple[str, str]:
        """Return the name and path of the program that unpacks the file. Raises ImageUnavailable."""
        found = shutil.which("unsquashfs") or shutil.which("unsquashfs", path=_FOLDERS)
        if found is not None:
            return "unsquashfs", found
        for name, program in apptainer_programs(node_cache()):
            own = Path(program).resolve().with_name("unsquashfs")
            return ("unsquashfs", str(own)) if os.access(own, os.X_OK) else (name, program)
        raise ImageUnavailable(
            self.name,
            "this node has neither unsquashfs nor Apptainer: install the package squashfs-tools, or Apptainer without root "
            "(deploy/apptainer/install.sh)",
        )


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
