"""The cache of a node's images, addressed by content: looks up what a name means, and fills and pins the image."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rollyard.core.aio import end_tasks
from rollyard.core.errors import ImageNotFound, ImageUnavailable
from rollyard.images.base import DiskFull, FillRoom
from rollyard.images.built_images import mark_used
from rollyard.images.cache_folder import CacheEntry, CacheFolder
from rollyard.images.cache_room import CacheRoom
from rollyard.images.image_source import ImageSource, LayerFile
from rollyard.images.image_sources import ImageSources
from rollyard.images.locks import FileLock, try_lock, wait_for_lock_unless
from rollyard.images.pinned_image import AboutImage, PinnedImage
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.settings import CacheSettings
from rollyard.images.tree_size import bytes_on_disk, count_names
from rollyard.images.unpacked_layers import HeldLayers, UnpackedLayer
from rollyard.kinds.values.image_reference import BuiltImage, ImageReference, RegistryImage

log = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES = 20


class ImageCache:
    def __init__(self, folder: Path, settings: CacheSettings | None = None) -> None:
        self._settings = settings or CacheSettings()
        self._folder = CacheFolder(folder)
        self._resolved = ResolvedTags(folder / "names")
        self._sources = ImageSources(folder, self._settings, self._folder.blobs, self._resolved)
        self.room = CacheRoom(self._folder, self._settings.cache_bytes)
        self._lookups: dict[str, asyncio.Task[str]] = {}
        self._fills: dict[str, asyncio.Task[None]] = {}
        with contextlib.suppress(OSError):  # `get` says what is wrong with the folder
            self._folder.tidy()

    async def get(self, image: ImageReference) -> PinnedImage:
        """Return an image, and pin it. If it is missing, it is pulled first; the pull goes on if the caller is cancelled.

        Raises ImageNotFound for a folder, and for a name that can never work, and ImageUnavailable.
        """
        source, path = self._sources.of(image), self._folder.path
        try:
            if not (path / "rubbish").is_dir():  # somebody has emptied the node's scratch folder
                self._folder.make()
            try:
                pinned = await self._pinned(source)
            except (DiskFull, OSError) as error:
                if not _is_full(error):
                    raise
                freed = await self.room.prune(float("inf"))
                log.warning("the disk of %s is full: deleted %d bytes of images that no sandbox uses", path, freed)
                pinned = await self._pinned(source)
        except (DiskFull, OSError) as error:
            if _is_full(error):
                why = f"the disk of {path} is full: free some, or lower `sandbox.images.cacheSize`"
            else:
                why = f"the cache {path} cannot be used: {getattr(error, 'strerror', None) or error}"
            raise ImageUnavailable(source.name, why) from error
        self._note_use(image)
        return pinned

    def here(self, image: ImageReference) -> PinnedImage | None:
        """Return an image, and pin it, if it is on this machine and `get` would return it without a look elsewhere."""
        known = self.known(image)
        with contextlib.suppress(OSError):
            if known is not None and (pinned := self._pin(image.text, known)) is not None:
                self._note_use(image)
                return pinned
        return None

    def _note_use(self, image: ImageReference) -> None:
        """Note the use of a built image, for `prune`."""
        if isinstance(image, BuiltImage):
            mark_used(self._sources.manifest(image))

    def known(self, image: ImageReference) -> str | None:
        """Return the digest that an image's name means, as far as this machine knows without a look elsewhere."""
        try:
            return self._sources.of(image).known()
        except (ImageNotFound, ImageUnavailable):
            return None  # the file is gone

    def has(self, image: ImageReference) -> bool:
        """Whether the last known content of an image is on this machine."""
        known = self._resolved.find(image.text)
        return known is not None and self._folder.entry(known.digest).is_dir()

    async def prefetch(self, image: ImageReference) -> None:
        """Pull an image without pinning it. Raises as `get`."""
        (await self.get(image)).release()

    def ready(self) -> set[str]:
        """Return the names, in normal form, of the images that are complete on this node."""
        return {one.image for one in self._resolved.all() if self._folder.entry(one.digest).is_dir()}

    def is_pinned(self, image: ImageReference) -> bool:
        """Return whether a process of this machine pins the last known content of an image."""
        known = self._resolved.find(image.text)
        return known is not None and self._folder.is_pinned(known.digest)

    def entries(self) -> list[CacheEntry]:
        """Return the images of the cache, the least recently used first."""
        return self._folder.entries()

    async def share(self, image: ImageReference) -> bool:
        """Put an image of a registry into the shared folder; return False if it is there. Raises ImageNotFound,
        ImageUnavailable and OSError."""
        if not isinstance(image, RegistryImage):
            raise ImageNotFound(f"{image.text} is a file: only images of registries are kept in the shared folder")
        self._folder.make()
        tier = await asyncio.to_thread(self._sources.tier)
        key = await self._sources.of(image).key()
        if tier is not None and await asyncio.to_thread(tier.has, key):
            return False
        await self.prefetch(image)
        if tier is None or not await asyncio.to_thread(tier.has, key):
            raise ImageUnavailable(image.text, f"it cannot be written to {self._settings.shared_folder}")
        return True

    def held_layers(self) -> HeldLayers:
        """Return the unpacked layers of a build, none yet. Raises OSError."""
        self._folder.make()
        return HeldLayers(self._folder.layers)

    async def layer_files(self, image: ImageReference, digest: str, pins: contextlib.ExitStack) -> Sequence[LayerFile]:
        """Return the files of the layers of the image with this digest, the lowest first, fetched where necessary, and keep
        them until `pins` is closed; none for a file without layers. Raises ImageUnavailable."""
        source = self._sources.of(image)
        try:
            if await source.key() != digest:
                raise ImageUnavailable(image.text, "it was replaced by another while it was read: try again")
            return await source.layer_files(pins)
        except DiskFull as error:
            raise ImageUnavailable(image.text, f"{error}: free some space") from None

    async def close(self) -> None:
        """End the pulls of this process."""
        await end_tasks(*self._lookups.values(), *self._fills.values())

    # pinning and filling

    async def _pinned(self, source: ImageSource) -> PinnedImage:
        """Return the image, pinned, and fill it before if it is missing. Raises ImageUnavailable, DiskFull and OSError."""
        key = await self._key(source)
        for _ in range(_TRIES):
            if (pinned := self._pin(source.name, key)) is not None:
                return pinned
            await self._filled(source, key)
        raise ImageUnavailable(source.name, "it was deleted as soon as it was there: raise `sandbox.images.cacheSize`")

    async def _key(self, source: ImageSource) -> str:
        """Return the key of a source. Of those who ask for a name at the same time, one looks it up."""
        name = source.name
        if (task := self._lookups.get(name)) is not None:
            await asyncio.shield(task)
            return await source.key()  # it is known now
        task = self._lookups[name] = asyncio.create_task(source.key())
        task.add_done_callback(lambda done: _forget(self._lookups, name, done))
        return await asyncio.shield(task)

    def _pin(self, name: str, key: str) -> PinnedImage | None:
        """Return the image, pinned; None if it is missing, damaged or being filled."""
        entry = self._folder.entry(key)
        lock = try_lock(self._folder.lock_path(entry.name), shared=True)
        with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
            if lock is not None:
                stack.callback(lock.release)
                if (about := self._about(entry)) is not None:
                    os.utime(entry)
                    stack.pop_all()
                    return PinnedImage(name, key, entry, self._folder.layers.folder, about, lock)
        return None

    async def _filled(self, source: ImageSource, key: str) -> None:
        task = self._fills.get(key)
        if task is None:
            task = self._fills[key] = asyncio.create_task(self._fill(source, key))
            task.add_done_callback(lambda done: _forget(self._fills, key, done))
        await asyncio.shield(task)

    async def _fill(self, source: ImageSource, key: str) -> None:
        entry = self._folder.entry(key)
        lock = await wait_for_lock_unless(self._folder.lock_path(entry.name), lambda: self._about(entry) is not None)
        if lock is None:
            return
        try:
            if self._about(entry) is not None:
                return
            await asyncio.to_thread(self._folder.discard, entry)  # it may be damaged
            await self.room.wait(source.name)
            await self._fill_locked(source, key, lock)
        finally:
            lock.release()
        await self.room.make(keep=entry)

    async def _fill_locked(self, source: ImageSource, key: str, lock: FileLock) -> None:
        entry = self._folder.entry(key)
        growing = self._folder.path / "filling" / entry.name
        await asyncio.to_thread(self._folder.discard, growing)
        growing.mkdir()
        growing.chmod(0o755)
        try:
            room = FillRoom(self._settings.cache_bytes, lock.fd)
            tier = await asyncio.to_thread(self._sources.tier) if source.shared else None
            with HeldLayers(self._folder.layers, None if tier is None else tier.layers) as held:
                if tier is not None:
                    filled = await tier.fill(source, key, growing, room, held)
                else:
                    filled = await source.fill(growing, room, held)
                layers = filled.layers or [await asyncio.to_thread(_own_layer, growing, filled.bytes)]
                AboutImage(source.name, entry.name, filled.config, layers).write(growing)
                coming = {one.name or entry.name: one.bytes for one in layers}
                await self.room.wait(source.name, coming, lambda: growing.rename(entry))
        finally:
            await asyncio.to_thread(self._folder.discard, growing)

    def _about(self, entry: Path) -> AboutImage | None:
        """Return what is noted about an image; None if it, or one of its layers, is missing or damaged."""
        about = AboutImage.read(entry)
        return about if about is not None and about.has_layers(self._folder.layers.folder) else None


def _own_layer(folder: Path, size: int | None) -> UnpackedLayer:
    """Return the folder `root` of an image as its only layer."""
    root = folder / "root"
    return UnpackedLayer("", bytes_on_disk(root) if size is None else size, count_names(root), whole=True)


def _forget(tasks: dict[str, asyncio.Task[T]], key: str, done: asyncio.Task[T]) -> None:
    del tasks[key]
    if not done.cancelled():
        done.exception()  # it is raised in the callers that still wait, if there are any


def _is_full(error: Exception) -> bool:
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
