"""Images in a folder that all nodes see: each layer once (`shared_layers.py`), and a small file for each image that names its
layers. One node makes them, the others read the layers that they lack.

Folders of the tier: `layers`, `images`, and `names` for what the nodes know about tags. An image's file appears after its
layers, and is deleted before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.core.lagging_files import LAG_POLL_SECONDS, LAG_SECONDS
from rollyard.core.regular_file import open_regular
from rollyard.host.removed_folder import remove
from rollyard.images.base import FillRoom, ImageConfig
from rollyard.images.blob_store import file_name
from rollyard.images.image_source import FilledImage, ImageSource
from rollyard.images.parts import chosen, own_and_shared
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.shared_layers import SharedLayers
from rollyard.images.shared_lease import shared_lease
from rollyard.images.unpacked_layers import HeldLayers
from rollyard.images.whole_file import write_whole

log = logging.getLogger(__name__)

READING_SECONDS = 3600.0
"""Seconds after the start of its last use for which a node may still be reading an image, or making one with a layer."""
_LAYER = re.compile(r"sha256-[0-9a-f]{64}")
_MOST_BYTES = 8 << 20
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a damaged file."""


@dataclass(frozen=True)
class SharedImage:
    """One image of the shared folder."""

    name: str | None
    """A name that the nodes know for it; None if the name has another digest now."""
    digest: str
    parts: frozenset[str]
    """Names of its layers; none if its file is damaged."""
    last_used: float
    """In seconds since the epoch."""
    own_bytes: int = 0
    """Bytes of the layers that no other image here has: what its deletion frees."""
    shared_bytes: int = 0
    """Bytes of the layers that other images here have too."""


@dataclass(frozen=True)
class _Listed:
    """Content of an image's file."""

    config: ImageConfig
    layers: Sequence[str]
    """The lowest first."""


class _NotShared(Exception):
    """The shared folder lacks a layer of an image that it has."""


class _NoFolder(Exception):
    """The shared folder cannot be used. `str()` is the reason."""


class SharedTier:
    """If the folder cannot be used, each node pulls for itself, and the log says so."""

    def __init__(self, folder: Path) -> None:
        self._images = folder / "images"
        self.layers = SharedLayers(folder / "layers")
        self.names = folder / "names"
        """Folder for what the nodes know about tags."""
        for made in (self._images, self.layers.folder, self.names):
            made.mkdir(parents=True, exist_ok=True)

    async def fill(self, source: ImageSource, key: str, folder: Path, room: FillRoom, held: HeldLayers) -> FilledImage:
        """Complete the image's layers, from this tier or else from the source. `held`: layers that know this tier. Raises as
        `ImageSource.fill`."""
        path = self._path(key)
        try:
            while True:
                if (found := await self._from_here(source, path, folder, room, held)) is not None:
                    return found
                async with contextlib.AsyncExitStack() as stack:
                    if await self._is_to_be_made(path, stack):
                        filled = await source.fill(folder, room, held)
                        await asyncio.to_thread(self._publish, source.name, path, filled)
                        return filled
        except _NoFolder as error:
            log.warning("the shared folder %s cannot be used: %s", self._images, error)
            return await source.fill(folder, room, held)

    async def _from_here(
        self, source: ImageSource, path: Path, folder: Path, room: FillRoom, held: HeldLayers
    ) -> FilledImage | None:
        """Return the image; None if it is missing, or lacks a layer and is deleted. Raises _NoFolder."""
        listed = await self._read(path)
        if listed is None:
            return None
        if not listed.layers:
            return await source.fill(folder, room, held)
        try:
            layers = await held.complete(source.name, listed.layers, _not_shared, room)
        except _NotShared:
            log.warning("a layer of %s is missing in %s, and is made again", source.name, self.layers.folder)
            await self._delete(path)
            return None
        with contextlib.suppress(OSError):
            await asyncio.to_thread(os.utime, path)  # the last use of an image is not before those of its layers
        return FilledImage(listed.config, layers)

    async def _is_to_be_made(self, path: Path, stack: contextlib.AsyncExitStack) -> bool:
        """Wait until the image is there, or return True; then no other node makes it until `stack` is closed. Raises
        _NoFolder."""
        try:
            held = await stack.enter_async_context(shared_lease(path.with_suffix(".lease"), path.exists))
            return held and not await asyncio.to_thread(path.exists)
        except OSError as error:
            raise _NoFolder(error.strerror or str(error)) from error

    async def _read(self, path: Path) -> _Listed | None:
        """Read an image's file. Wait for the end of the file and for its layers, if they are missing. Delete a damaged file.
        Raises _NoFolder."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAG_SECONDS
        while True:
            late, damage = loop.time() >= deadline, ""
            try:
                listed = await asyncio.to_thread(_read, path)
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(os.utime, path)  # for `prune`, which spares what is being read
                if late or await asyncio.to_thread(self._has_layers, listed):
                    return listed
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _NoFolder(error.strerror or str(error)) from error
            except _DAMAGE as error:
                damage = str(error)
            if late:
                log.warning("%s is damaged (%s), and is made again", path, damage)
                await self._delete(path)
                return None
            await asyncio.sleep(LAG_POLL_SECONDS)

    async def _delete(self, path: Path) -> None:
        try:
            await asyncio.to_thread(remove, path)
        except OSError as error:
            raise _NoFolder(error.strerror or str(error)) from error

    def _publish(self, name: str, path: Path, filled: FilledImage) -> None:
        listed = _Listed(filled.config, [layer.name for layer in reversed(filled.layers)])
        try:
            if self._has_layers(listed):
                write_whole(path, _packed(listed))
        except OSError as error:
            log.warning("%s cannot be shared in %s: %s", name, self._images, error.strerror)

    def _has_layers(self, listed: _Listed) -> bool:
        return all(self.layers.path(name).exists() for name in listed.layers)

    def images(self) -> list[SharedImage]:
        """Return the images of the folder, the least recently used first. Raises OSError."""
        names = {one.digest: one.image for one in ResolvedTags(self.names).all()}
        found = []
        for path in self._images.glob("*.json"):
            digest, parts = path.stem.replace("-", ":", 1), frozenset[str]()
            with contextlib.suppress(FileNotFoundError):
                used = path.stat().st_mtime
                with contextlib.suppress(*_DAMAGE):
                    parts = frozenset(_read(path).layers)
                found.append(SharedImage(names.get(digest), digest, parts, used))
        sizes = own_and_shared(found, self.layers.sizes())
        found = [
            replace(one, own_bytes=own, shared_bytes=shared) for one, (own, shared) in zip(found, sizes, strict=True)
        ]
        return sorted(found, key=lambda one: one.last_used)

    def bytes(self) -> int:
        """Return the bytes of all layers."""
        return sum(self.layers.sizes().values())

    def has(self, key: str) -> bool:
        try:
            return self._has_layers(_read(self._path(key)))
        except (OSError, *_DAMAGE):
            return False

    def prune(self, unused_seconds: float) -> int:
        """Delete the images that no node has read for this time. Return the number of freed bytes."""
        unused = [one for one in self.images() if one.last_used < time.time() - unused_seconds]
        return self.delete(unused) + self._delete_leftovers()

    def shrink(self, limit_bytes: int) -> int:
        """Delete the least recently used images until the folder is within the limit, but none that a node may be reading.
        Return the number of freed bytes."""
        images, sizes, before = self.images(), self.layers.sizes(), time.time() - READING_SECONDS
        unused = [one for one in images if one.last_used < before]
        excess = sum(sizes.values()) - limit_bytes
        return self.delete(chosen(unused, images, sizes, excess)) + self._delete_leftovers()

    def delete(self, images: Iterable[SharedImage]) -> int:
        """Delete images, and the layers that no other image names. A layer that was used after its images is one of an image
        that is being made, and stays. Return the number of freed bytes."""
        last_used = dict[str, float]()
        for one in images:
            self._path(one.digest).unlink(missing_ok=True)
            last_used |= {part: max(one.last_used, last_used.get(part, 0.0)) for part in one.parts}
        return self._delete_unnamed(last_used)

    def _delete_unnamed(self, last_used: Mapping[str, float]) -> int:
        """Delete layers that no image names and that nobody has used since. Return the number of freed bytes."""
        freed, named = 0, {part for one in self.images() for part in one.parts}
        for part in last_used.keys() - named:
            with contextlib.suppress(FileNotFoundError):
                info = self.layers.path(part).stat()
                if info.st_mtime <= last_used[part]:
                    self.layers.path(part).unlink()
                    freed += info.st_size
        return freed

    def _delete_leftovers(self) -> int:
        """Delete what dead nodes left: layers without an image, incomplete files and leases, which live nodes change all the
        time; and what older versions left. Return the number of freed bytes."""
        before = time.time() - READING_SECONDS
        freed = self._delete_unnamed(dict.fromkeys(self.layers.sizes(), before))
        for path in (found for place in (self._images, self.layers.folder, self.names) for found in place.iterdir()):
            older = path.parent == self._images and path.suffix == ".zst"
            with contextlib.suppress(FileNotFoundError):
                left = path.name.startswith(".") or ".lease" in path.name or older
                if left and (info := path.stat()).st_mtime < before:
                    path.unlink()
                    freed += info.st_size
        return freed

    def _path(self, key: str) -> Path:
        return self._images / f"{file_name(key)}.json"


async def _not_shared(_: Sequence[int]) -> Sequence[Path]:
    raise _NotShared


def _packed(listed: _Listed) -> bytes:
    image = {"config": listed.config.to_json(), "layers": list(listed.layers)}
    text = json.dumps(image)
    return json.dumps({"image": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _read(path: Path) -> _Listed:
    """Raises OSError, and one of _DAMAGE."""
    try:
        opened = open_regular(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise ValueError("it is not a file") from None
        raise
    with opened as file:
        data = json.loads(file.read(_MOST_BYTES))
    text = data["image"]
    if hashlib.sha256(text.encode()).hexdigest() != data["sha256"]:
        raise ValueError("its digest is wrong")
    image = json.loads(text)
    if not all(_LAYER.fullmatch(name) for name in image["layers"]):
        raise ValueError("it names a layer that is none")
    return _Listed(ImageConfig.from_json(image["config"]), image["layers"])
