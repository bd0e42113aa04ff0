"""Images in a folder that all nodes see: one file for each digest. One node makes the file, the others unpack it.

A file appears by a rename, so it is complete or absent. Its pieces are verified when it is unpacked. A damaged file is
deleted and made again, after a while if its end is missing: on a folder that lags, the end may still come.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.lagging_files import LAG_POLL_SECONDS, LAG_SECONDS
from rollyard.core.regular_file import open_regular
from rollyard.host.removed_folder import remove
from rollyard.images import flat_image
from rollyard.images.base import FillRoom, ImageConfig
from rollyard.images.blob_store import file_name
from rollyard.images.image_source import FilledImage, ImageSource
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.shared_lease import shared_lease
from rollyard.images.unpack import BrokenLayer, run_child, unpack_flat

log = logging.getLogger(__name__)

READING_SECONDS = 3600.0
"""Seconds after the start of its last use for which a node may still be reading a file."""


@dataclass(frozen=True)
class SharedFile:
    """One image of the shared folder."""

    name: str | None
    """A name that the nodes know for it; None if the name has another digest now."""
    digest: str
    bytes: int
    last_used: float
    """In seconds since the epoch."""


class SharedTier:
    """If the folder cannot be used, each node pulls for itself, and the log says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "images"
        self.names = folder / "names"
        """Folder for what the nodes know about tags."""
        for made in (self._folder, self.names):
            made.mkdir(parents=True, exist_ok=True)

    async def fill(self, source: ImageSource, key: str, folder: Path, room: FillRoom) -> FilledImage:
        """Make `root` in `folder`, from this tier or else from the source. Raises as `ImageSource.fill`."""
        path = self._path(key)
        try:
            while True:
                if (found := await self._unpacked(source.name, path, folder, room)) is not None:
                    return found
                async with shared_lease(path.with_suffix(".lease"), path.exists) as held:
                    if held and not path.exists():
                        filled = await source.fill(folder, room)
                        await self._publish(source.name, path, folder / "root", filled.config, room)
                        return filled
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", self._folder, error.strerror)
            await asyncio.to_thread(shutil.rmtree, folder / "root", ignore_errors=True)
            return await source.fill(folder, room)

    async def _unpacked(self, name: str, path: Path, folder: Path, room: FillRoom) -> FilledImage | None:
        """Unpack the image; return None if the file was damaged, and is deleted."""
        with contextlib.suppress(OSError):
            os.utime(path)  # for `prune`, which spares what is being read
        try:
            config = await _config(path)
            size = await unpack_flat(name, path, folder / "root", room)
        except FileNotFoundError:
            return None
        except (flat_image.BrokenFlatImage, BrokenLayer, ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s), and is made again", path, error)
            await asyncio.to_thread(remove, path)
            await asyncio.to_thread(shutil.rmtree, folder / "root", ignore_errors=True)
            return None
        return FilledImage(config, bytes=size)

    async def _publish(self, name: str, path: Path, root: Path, config: ImageConfig, room: FillRoom) -> None:
        growing = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            await asyncio.to_thread(_remove_leftovers, path)
            job = {"root": str(root), "config": config.to_json(), "file": str(growing)}
            result = await run_child("rollyard.images.pack_main", job, room)
            if "failed" in result:
                log.warning("%s cannot be shared in %s: %s", name, self._folder, result["failed"])
            else:
                growing.rename(path)
        except OSError as error:
            log.warning("%s cannot be shared in %s: %s", name, self._folder, error.strerror)
        finally:
            with contextlib.suppress(OSError):
                growing.unlink(missing_ok=True)

    def files(self) -> list[SharedFile]:
        """Return the images of the folder, the least recently used first."""
        names = {one.digest: one.image for one in ResolvedTags(self.names).all()}
        found = []
        for path in self._folder.glob("*.tar.zst"):
            digest = path.name.removesuffix(".tar.zst").replace("-", ":", 1)
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                found.append(SharedFile(names.get(digest), digest, info.st_size, info.st_mtime))
        return sorted(found, key=lambda file: file.last_used)

    def has(self, key: str) -> bool:
        return self._path(key).exists()

    def prune(self, unused_seconds: float) -> int:
        """Delete the files that no node has read for this time. Return the number of freed bytes."""
        unused = [file for file in self.files() if file.last_used < time.time() - unused_seconds]
        return self.delete(unused) + self._delete_leftovers()

    def shrink(self, limit_bytes: int) -> int:
        """Delete the least recently used files until the folder is within the limit, but none that a node may be reading.
        Return the number of freed bytes."""
        files = self.files()
        excess = sum(file.bytes for file in files) - limit_bytes
        chosen, now = list[SharedFile](), time.time()
        for file in files:
            if excess > 0 and file.last_used < now - READING_SECONDS:
                chosen.append(file)
                excess -= file.bytes
        return self.delete(chosen) + self._delete_leftovers()

    def _path(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.tar.zst"

    def delete(self, files: Iterable[SharedFile]) -> int:
        """Return the number of freed bytes."""
        freed = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                self._path(file.digest).unlink()
                freed += file.bytes
        return freed

    def _delete_leftovers(self) -> int:
        """Delete what dead nodes left: incomplete files and leases, which live nodes change all the time. Return the number of
        freed bytes."""
        freed, before = 0, time.time() - READING_SECONDS
        for path in (found for place in (self._folder, self.names) for found in place.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if (path.name.startswith(".") or ".lease" in path.name) and (info := path.stat()).st_mtime < before:
                    path.unlink()
                    freed += info.st_size
        return freed


async def _config(path: Path) -> ImageConfig:
    """Read the configuration. Wait for the end of the file, if it is missing."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAG_SECONDS
    while True:
        try:
            return await asyncio.to_thread(_read_config, path)
        except flat_image.IncompleteFlatImage:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(LAG_POLL_SECONDS)


def _read_config(path: Path) -> ImageConfig:
    try:
        opened = open_regular(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise flat_image.BrokenFlatImage("it is not a file") from None
        raise
    with opened as file:
        return ImageConfig.from_json(flat_image.read_index(file).config)


def _remove_leftovers(path: Path) -> None:
    """Delete the incomplete files of dead nodes. A slow node that is taken for dead finds that it cannot rename."""
    for left in path.parent.glob(f".{path.name}.*"):
        left.unlink(missing_ok=True)
