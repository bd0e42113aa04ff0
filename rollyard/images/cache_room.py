"""The bound of a node's cache of images: what is deleted to make room, and the wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rollyard.core.aio import Signal
from rollyard.core.errors import ImageUnavailable
from rollyard.images.cache_folder import CachedBlob, CacheEntry, CacheFolder
from rollyard.images.locks import wait_for_lock

log = logging.getLogger(__name__)

ROOM_SECONDS = 60.0
"""Seconds for which a new image waits until sandboxes let go of others, if all images of a full cache are in use."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class CacheStorage:
    """Space of the images of a cache."""

    images: int = 0
    layers: int = 0
    """A layer of several images counts once."""
    bytes: int = 0
    """Bytes of these layers."""
    unshared_bytes: int = 0
    """Bytes that the images would take if none shared a layer."""


class CacheRoom:
    def __init__(self, folder: CacheFolder, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._evicting = asyncio.Lock()
        self.evicted_layers = self.evicted_bytes = 0
        """Layers that this process has deleted because the cache was full, and their bytes."""
        self.full = Signal[[]]()
        """Signal: a new image has no room, because the images in use fill the cache."""

    def half_is_free(self) -> bool:
        """Whether the images in use take less than half of the cache."""
        return _bytes_of(one for one in self._folder.entries() if one.pinned) * 2 < self._limit

    async def prune(self, before: float) -> int:
        """Delete the images, layers and blobs that nobody uses or has used since `before`, in seconds since the epoch. Return
        the number of freed bytes."""
        async with self._evicting:
            return await asyncio.to_thread(self._prune, before)

    async def delete(self, entries: Sequence[CacheEntry]) -> int:
        """Delete images that nobody uses. Return the number of freed bytes."""
        async with self._evicting:
            return await asyncio.to_thread(self._delete_images, entries)

    async def shrink(self, beside: int = 0) -> int:
        """Delete the least recently used blobs and images until they are within the bound with `beside` bytes more, as far as
        nobody uses them. Return the number of freed bytes."""
        before = await asyncio.to_thread(self.bytes)
        await self.make(coming={"": beside})
        return before - await asyncio.to_thread(self.bytes)

    async def wait(
        self, name: str, coming: Mapping[str, int] = MappingProxyType({}), enter: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until an image with the layers `coming`, name -> bytes, fits beside the images in use; then call `enter`.
        Meanwhile no other process enters an image. Raises ImageUnavailable."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + ROOM_SECONDS
        while True:
            lock = await wait_for_lock(self._folder.lock_path("room"))
            try:
                if await self.make(coming=coming):
                    enter()
                    return
            finally:
                lock.release()
            self.full.emit()
            if loop.time() > ends:
                raise ImageUnavailable(
                    name, "sandboxes use all images of the full cache: raise `sandbox.images.cacheSize`, or wait"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def make(self, keep: Path | None = None, coming: Mapping[str, int] = MappingProxyType({})) -> bool:
        """Delete the least recently used blobs and layers without an image, then images other than `keep`, until the cache is
        within its bound with the layers `coming` too. Return whether its images are; what is being made does not count."""
        async with self._evicting:
            return await asyncio.to_thread(self._evict, keep, coming)

    def storage(self) -> CacheStorage:
        """Return what the images take now."""
        images = self._folder.entries()
        layers = {name for one in images for name in one.layers}
        return CacheStorage(len(images), len(layers), _bytes_of(images), sum(one.bytes for one in images))

    def image_bytes(self) -> int:
        """Return the bytes of all images. A layer of several images counts once."""
        return _bytes_of(self._folder.entries())

    def bytes(self) -> int:
        """Return the bytes of the whole cache."""
        rest = (*self._folder.cached_blobs(), *self._folder.unnamed_layers())
        return self.image_bytes() + sum(one.bytes for one in rest)

    def _evict(self, keep: Path | None, coming: Mapping[str, int]) -> bool:
        blobs, images, unnamed = self._folder.cached_blobs(), self._folder.entries(), self._folder.unnamed_layers()
        coming_bytes, left = sum(coming.values()), _bytes_of(images, coming)
        unnamed = [one for one in unnamed if one.path.name not in coming]
        total = left + sum(one.bytes for one in (*blobs, *unnamed))
        for blob in blobs:
            if total <= self._limit:
                return True
            total -= self._delete([blob])
        if total > self._limit:
            self._count(self._folder.delete_layers(unnamed))
        stay = list(images)
        for image in images:
            if left <= self._limit:
                break
            if image.path != keep and self._folder.delete(image):
                log.info("deleted %s from the cache of images: %d bytes", image.name, image.bytes)
                self._count([one for one in [image] if one.path.name in one.layers])
                stay.remove(image)
                left = _bytes_of(stay, coming)
        if len(stay) < len(images):
            self._count(self._folder.delete_layers(self._folder.unnamed_layers()))
        return left <= self._limit or left == coming_bytes > 0

    def _count(self, layers: Iterable[CachedBlob]) -> None:
        for one in layers:
            self.evicted_layers += 1
            self.evicted_bytes += one.bytes

    def _prune(self, before: float) -> int:
        images = [one for one in self._folder.entries() if one.last_used < before]
        freed = self._delete(one for one in self._folder.cached_blobs() if one.last_used < before)
        freed += self._delete_images(images)
        unused = [one for one in self._folder.unnamed_layers() if one.last_used < before]
        return freed + sum(one.bytes for one in self._folder.delete_layers(unused))

    def _delete_images(self, images: Iterable[CacheEntry]) -> int:
        """Delete images, and the layers that no other image names. Return the number of freed bytes."""
        deleted = [one for one in images if self._folder.delete(one)]
        named = {name for one in deleted for name in one.layers}
        own = sum(one.layers.get(one.path.name, 0) for one in deleted)
        layers = [one for one in self._folder.unnamed_layers() if one.path.name in named]
        return own + sum(one.bytes for one in self._folder.delete_layers(layers))

    def _delete(self, unused: Iterable[CachedBlob]) -> int:
        """Return the number of freed bytes."""
        return sum(one.bytes for one in unused if self._folder.delete(one))


def _bytes_of(images: Iterable[CacheEntry], more: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the bytes of images, and of the layers `more`, each layer once."""
    return sum({**more, **{name: size for one in images for name, size in one.layers.items()}}.values())
