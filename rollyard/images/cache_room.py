"""The bound of a node's cache of images: what is deleted to make room, and the wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rollyard.core.aio import Signal
from rollyard.core.errors import ImageUnavailable
from rollyard.images.cache_folder import CachedBlob, CacheEntry, CacheFolder
from rollyard.images.locks import wait_for_lock

log = logging.getLogger(__name__)

ROOM_SECONDS = 60.0
"""Seconds for which a new image waits until sandboxes let go of others, if all images of a full cache are in use."""
_POLL_SECONDS = 0.5


class CacheRoom:
    def __init__(self, folder: CacheFolder, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._evicting = asyncio.Lock()
        self.full = Signal[[]]()
        """Signal: a new image has no room, because the images in use fill the cache."""

    def half_is_free(self) -> bool:
        """Whether the images in use take less than half of the cache."""
        return sum(one.bytes for one in self._folder.entries() if one.pinned) * 2 < self._limit

    async def prune(self, before: float) -> int:
        """Delete the images and blobs that nobody uses or has used since `before`, in seconds since the epoch. Return the
        number of freed bytes."""
        async with self._evicting:
            return await asyncio.to_thread(lambda: self._delete(one for one in self._all() if one.last_used < before))

    async def delete(self, entries: Sequence[CacheEntry]) -> int:
        """Delete images that nobody uses. Return the number of freed bytes."""
        async with self._evicting:
            return await asyncio.to_thread(self._delete, entries)

    async def shrink(self, beside: int = 0) -> int:
        """Delete the least recently used blobs and images until they are within the bound with `beside` bytes more, as far as
        nobody uses them. Return the number of freed bytes."""
        before = await asyncio.to_thread(self._bytes)
        await self.make(coming=beside)
        return before - await asyncio.to_thread(self._bytes)

    async def wait(self, name: str, coming: int = 0, enter: Callable[[], object] = lambda: None) -> None:
        """Wait until an image of `coming` bytes fits beside the images in use; then call `enter`. Meanwhile no other process
        enters an image. Raises ImageUnavailable."""
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

    async def make(self, keep: Path | None = None, coming: int = 0) -> bool:
        """Delete the least recently used blobs, then images other than `keep`, until the cache is within its bound with
        `coming` bytes more. Return whether its images are; blobs that are being unpacked do not count."""
        async with self._evicting:
            return await asyncio.to_thread(self._evict, keep, coming)

    def _evict(self, keep: Path | None, coming: int) -> bool:
        blobs, images = self._folder.cached_blobs(), self._folder.entries()
        left = sum(one.bytes for one in images) + coming
        total = left + sum(one.bytes for one in blobs)
        for blob in blobs:
            if total <= self._limit:
                return True
            total -= self._delete([blob])
        for image in images:
            if left <= self._limit:
                return True
            if image.path != keep and self._folder.delete(image):
                log.info("deleted %s from the cache of images: %d bytes", image.name, image.bytes)
                left -= image.bytes
        return left <= self._limit or left == coming > 0

    def _delete(self, unused: Iterable[CachedBlob]) -> int:
        """Return the number of freed bytes."""
        return sum(one.bytes for one in unused if self._folder.delete(one))

    def _all(self) -> list[CachedBlob]:
        return [*self._folder.cached_blobs(), *self._folder.entries()]

    def _bytes(self) -> int:
        return sum(one.bytes for one in self._all())
