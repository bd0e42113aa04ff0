"""`.squashfs` and `.sif` files, as a source of the cache. The program unsquashfs unpacks them, or else Apptainer."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rollyard.core.errors import ImageUnavailable
from rollyard.core.regular_file import open_regular
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.images.base import FillRoom, ImageConfig, too_big
from rollyard.images.image_file import ImageFile
from rollyard.images.image_source import FilledImage, LayerFile
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.sif_header import UnusableFile, squashfs_offset
from rollyard.images.unpack import unpack_squashfs
from rollyard.images.unpacked_layers import HeldLayers
from rollyard.kinds.values.image_reference import PathImage

_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SquashfsSource:
    shared = False

    def __init__(self, image: PathImage, resolved: ResolvedTags, limit_bytes: int) -> None:
        self._image = image
        self._path = Path(image.path)
        self._limit = limit_bytes
        self._file = ImageFile(image.text, self._path, "file", resolved)
        self._key = ""

    @property
    def name(self) -> str:
        return self._image.text

    async def key(self) -> str:
        """Return the sha256 of the file, which is read once for each of its contents. Raises ImageUnavailable."""
        self._key = await self._file.digest(self._digest)
        return self._key

    def known(self) -> str | None:
        return self._file.known()

    async def fill(self, folder: Path, room: FillRoom, layers: HeldLayers) -> FilledImage:
        """Raises ImageUnavailable and DiskFull."""
        await self._check_unchanged()
        offset = await asyncio.to_thread(self._offset)
        program, path = self._unpacker()
        env = await unpack_squashfs(self.name, self._path, offset, (program, path), folder, room)
        await self._check_unchanged()
        config = ImageConfig(env=env)
        if config.fault is not None:
            raise ImageUnavailable(self.name, f"{config.fault}: build the image again", permanent=True)
        return FilledImage(config)

    async def _check_unchanged(self) -> None:
        """Raise ImageUnavailable if the file has another content than when `key` looked. It is read again only if it may."""
        if await self._file.digest(self._digest) != self._key:
            raise self._file.changed()

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

    async def layer_files(self, pins: ExitStack) -> Sequence[LayerFile]:
        return ()
