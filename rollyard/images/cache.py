"""The cache of a node's images, addressed by content. All node agents of a node share it.

Folders below the cache: `entries` has an unpacked image for each digest, complete or absent; `filling` has the ones that
are being made; `blobs` has downloaded layers; `names` which digest each name meant; `locks` one lock file for each image
and blob; `rubbish` what is being deleted. Who fills or deletes an image holds its lock exclusively. Who uses an image
shares its lock. The kernel releases the locks of dead processes.

Files of an image keep its modes, also 0777. So the folders above them are closed to other users of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rollyard.core.aio import Signal, end_tasks
from rollyard.core.errors import ImageNotFound, ImageUnavailable
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import close_to_others
from rollyard.images.base import DiskFull, FillRoom, ImageConfig, ImageSource
from rollyard.images.blob_store import BlobStore, file_name
from rollyard.images.built_images import BuiltImages, mark_used
from rollyard.images.layout_source import LayoutSource
from rollyard.images.local_sources import FolderInPlace, local_source
from rollyard.images.locks import FileLock, try_lock, wait_for_lock, wait_for_lock_unless
from rollyard.images.registry_health import RegistryHealth
from rollyard.images.registry_source import RegistrySource
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.settings import CacheSettings
from rollyard.images.shared_tier import SharedTier
from rollyard.kinds.values.image_reference import BuiltImage, ImageReference, LayoutImage, RegistryImage, parse_image

log = logging.getLogger(__name__)

T = TypeVar("T")

ROOM_SECONDS = 60.0
"""Seconds for which a new image waits until sandboxes let go of others, if all images of a full cache are in use."""
_POLL_SECONDS = 0.5
_WRITE_SECONDS = 3600.0
"""Age at which a hidden file is left over from a dead process."""
_TRIES = 20
ABOUT = "image.json"
"""File of an entry. An entry without it is damaged, and nobody new uses it."""
DELETED = "it was deleted from the node's cache while rollouts used it"
MOST_TAGS = 10
"""Greatest number of names that a sentence about a missing built image lists."""


@dataclass(frozen=True)
class CacheEntry:
    """One image of the cache."""

    name: str
    """Name under which it was first asked for."""
    digest: str
    bytes: int
    last_used: float
    """In seconds since the epoch."""
    held: bool


class LocalImage:
    """An image on this machine. It is not deleted until `release`. Use as a context manager, or call `release`."""

    def __init__(
        self,
        name: str,
        digest: str,
        root: Path,
        config: ImageConfig,
        lock: FileLock | None,
        names: int | None = None,
    ) -> None:
        """`names`: number of files and folders when the image was unpacked; None if it is not known."""
        self.name = name
        self.digest = digest
        self.root = root
        self.config = config
        self._lock = lock
        self._names = names

    def check(self) -> None:
        """Raise ImageUnavailable if somebody has deleted the image from the cache meanwhile."""
        if self._lock is not None and not (self.root.parent / ABOUT).exists():
            raise ImageUnavailable(self.name, f"{DELETED}; it is unpacked again once they have ended")

    def check_files(self) -> None:
        """Raise ImageUnavailable if files of the image were deleted. Blocks, for a second with a million files. The image is
        unpacked again when nobody holds it any more."""
        self.check()
        if self._lock is not None and self._names is not None and (left := count_names(self.root)) < self._names:
            (self.root.parent / ABOUT).unlink(missing_ok=True)
            raise ImageUnavailable(
                self.name, f"{self._names - left} of its files and folders were deleted from the node's cache"
            )

    def release(self) -> None:
        """Let go of the image. A second call has no effect."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.utime(self.root.parent)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> LocalImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ImageCache:
    def __init__(self, folder: Path, settings: CacheSettings | None = None, *, images: Path | None = None) -> None:
        """`images`: folder below which relative names are looked up; default: the working directory."""
        self._settings = settings or CacheSettings()
        self._images = images
        self._folder = folder
        self._make_folders()
        self._blobs = BlobStore(folder / "blobs", folder / "locks")
        self._resolved = ResolvedTags(folder / "names")
        self._registries = RegistryHealth()
        self._lookups: dict[str, asyncio.Task[str]] = {}
        self._fills: dict[str, asyncio.Task[None]] = {}
        self._pulling: dict[str, int] = {}
        self._evicting = asyncio.Lock()
        self.full = Signal[[]]()
        """Signal: a new image has no room, because the images in use fill the cache."""
        self._limit = self._settings.cache_bytes
        self._remove_leftovers()

    def _make_folders(self) -> None:
        for name in ("", "entries", "filling", "blobs", "names", "locks", "rubbish"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
            close_to_others(self._folder / name)

    async def get(self, image: str) -> LocalImage:
        """Return an image, and hold it. If it is missing, it is pulled first; the pull goes on if the caller is cancelled.

        Raises ImageNotFound for a name that can never work, and ImageUnavailable.
        """
        source = self._source(image)
        if isinstance(source, FolderInPlace):
            return LocalImage(image, "", source.root, source.config, None)
        try:
            if not (self._folder / "rubbish").is_dir():  # somebody has emptied the node's scratch folder
                self._make_folders()
            try:
                held = await self._held(source)
            except (DiskFull, OSError) as error:
                if not _is_full(error):
                    raise
                freed = await self.prune(0.0, float("inf"))
                log.warning(
                    "the disk of %s is full: deleted %d bytes of images that no sandbox uses", self._folder, freed
                )
                held = await self._held(source)
        except (DiskFull, OSError) as error:
            if _is_full(error):
                why = f"the disk of {self._folder} is full: free some, or lower `sandbox.images.cacheSize`"
            else:
                why = f"the cache {self._folder} cannot be used: {getattr(error, 'strerror', None) or error}"
            raise ImageUnavailable(source.name, why) from error
        return self._used_now(image, held)

    def is_current(self, image: str, held: LocalImage) -> bool:
        """Return whether `get` would return the same image, without asking a registry or reading a whole file."""
        return self.known(image) == held.digest

    def here(self, image: str) -> LocalImage | None:
        """Return an image, and hold it, if it is on this machine and `get` would return it without a look elsewhere."""
        known = self.known(image)
        with contextlib.suppress(OSError):
            held = self._hold(image, known) if known is not None else None
            return held and self._used_now(image, held)
        return None

    def _used_now(self, image: str, held: LocalImage) -> LocalImage:
        """Note the use of a built image's archive, for `prune`."""
        reference = parse_image(image)
        if isinstance(reference, BuiltImage):
            mark_used(Path(self._built(reference)))
        return held

    def known(self, image: str) -> str | None:
        """Return the digest that an image's name means, as far as this machine knows without a look elsewhere."""
        try:
            source = self._source(image)
            return source.known() if not isinstance(source, FolderInPlace) else None
        except (ImageNotFound, ImageUnavailable):
            return None  # the file is gone

    def half_is_free(self) -> bool:
        """Whether the images in use take less than half of the cache."""
        return sum(one.bytes for one in self.entries() if one.held) * 2 < self._limit

    def has(self, image: str) -> bool:
        """Whether the last known content of an image is on this machine."""
        known = self._resolved.find(image)
        return known is not None and self._entry(known.digest).is_dir()

    async def prefetch(self, image: str) -> None:
        """Pull an image without holding it. Raises as `get`."""
        (await self.get(image)).release()

    def ready(self) -> set[str]:
        """Return the names, in normal form, of the images that are complete on this node."""
        return {one.image for one in self._resolved.all() if self._entry(one.digest).is_dir()}

    def is_held(self, image: str) -> bool:
        """Return whether a process of this machine holds the last known content of an image."""
        known = self._resolved.find(image)
        return known is not None and self._is_held(file_name(known.digest))

    def pulling(self) -> set[str]:
        """Return the names of the images that this process is fetching."""
        return set(self._pulling)

    def entries(self) -> list[CacheEntry]:
        """Return the images of the cache, the least recently used first."""
        return [
            replace(entry, held=self._is_held(file_name(entry.digest))) for entry in sorted(self._entries(), key=_used)
        ]

    async def prune(self, unused_seconds: float, now: float) -> int:
        """Delete the images and blobs that nobody holds or has used for this time. Return the number of freed bytes."""
        async with self._evicting:
            return await asyncio.to_thread(self._prune, now - unused_seconds)

    async def shrink(self, beside: int = 0) -> int:
        """Delete the least recently used blobs and images until they are within the bound with `beside` bytes more, as far as
        nobody holds them. Return the number of freed bytes."""
        before = await asyncio.to_thread(self._bytes)
        await self._make_room(coming=beside)
        return before - await asyncio.to_thread(self._bytes)

    async def share(self, image: str) -> bool:
        """Put an image of a registry into the shared folder; return False if it is there. Raises ImageNotFound and
        ImageUnavailable."""
        source = self._source(image)
        if isinstance(source, FolderInPlace) or not source.shared:
            raise ImageNotFound(f"{image} is a file: only images of registries are kept in the shared folder")
        tier = await asyncio.to_thread(self._tier)
        key = await source.key()
        if tier is not None and await asyncio.to_thread(tier.has, key):
            return False
        await self.prefetch(image)
        if tier is None or not await asyncio.to_thread(tier.has, key):
            raise ImageUnavailable(source.name, f"it cannot be written to {self._settings.shared_folder}")
        return True

    async def close(self) -> None:
        """End the pulls of this process."""
        await end_tasks(*self._lookups.values(), *self._fills.values())

    # sources

    def _source(self, image: str) -> ImageSource | FolderInPlace:
        try:
            reference: ImageReference = parse_image(image)
        except ValueError as error:
            raise ImageNotFound(str(error)) from None
        if isinstance(reference, RegistryImage):
            return RegistrySource(
                reference, self._settings, self._blobs, self._resolved, self._shared_names, self._registries
            )
        if isinstance(reference, BuiltImage):
            path = self._built(reference)
            others = [] if os.path.exists(path) else self._other_tags(reference)
            archive = LayoutImage("oci-archive", path, None)
            return LayoutSource(archive, self._blobs, self._resolved, reference, others[:MOST_TAGS])
        return local_source(reference, self._blobs, self._resolved, self._limit)

    def _built(self, image: BuiltImage) -> str:
        """Return the path of a built image: in the shared folder, or else of this machine."""
        shared = self._settings.shared_folder
        path = "" if shared is None else image.archive(shared)
        return path if os.path.exists(path) else image.archive(os.fspath(self._folder))

    def _other_tags(self, image: BuiltImage) -> list[str]:
        shared = self._settings.shared_folder
        folders = [self._folder] if shared is None else [Path(shared), self._folder]
        names = (one.image for folder in folders for one in BuiltImages(folder).archives())
        return sorted({one.text for one in names if one.name == image.name})

    def _tier(self) -> SharedTier | None:
        """Return the shared tier, if the pool has one that can be used now. The call takes as long as the file system does."""
        if self._settings.shared_folder is None:
            return None
        try:
            return SharedTier(Path(self._settings.shared_folder))
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", self._settings.shared_folder, error.strerror)
            return None

    def _shared_names(self) -> ResolvedTags | None:
        tier = self._tier()
        return ResolvedTags(tier.names) if tier is not None else None

    # holding and filling

    def _entry(self, key: str) -> Path:
        return self._folder / "entries" / file_name(key)

    def _lock_path(self, name: str) -> Path:
        return self._folder / "locks" / name

    async def _held(self, source: ImageSource) -> LocalImage:
        """Return the image, held, and fill it before if it is missing. Raises ImageUnavailable, DiskFull and OSError."""
        key = await self._key(source)
        for _ in range(_TRIES):
            if (held := self._hold(source.name, key)) is not None:
                return held
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

    def _hold(self, name: str, key: str) -> LocalImage | None:
        """Return the image, held; None if it is missing, damaged or being filled."""
        entry = self._entry(key)
        lock = try_lock(self._lock_path(entry.name), shared=True)
        if lock is None:
            return None
        try:
            about = _about(entry)
            if about is None:
                lock.release()
                return None
            os.utime(entry)
        except BaseException as error:
            lock.release()
            if isinstance(error, FileNotFoundError):
                return None
            raise
        return LocalImage(name, key, entry / "root", about.config, lock, about.names)

    async def _filled(self, source: ImageSource, key: str) -> None:
        task = self._fills.get(key)
        if task is None:
            task = self._fills[key] = asyncio.create_task(self._fill(source, key))
            task.add_done_callback(lambda done: _forget(self._fills, key, done))
        self._pulling[source.name] = self._pulling.get(source.name, 0) + 1
        try:
            await asyncio.shield(task)
        finally:
            self._pulling[source.name] -= 1
            if not self._pulling[source.name]:
                del self._pulling[source.name]

    async def _fill(self, source: ImageSource, key: str) -> None:
        entry = self._entry(key)
        lock = await wait_for_lock_unless(self._lock_path(entry.name), lambda: _about(entry) is not None)
        if lock is None:
            return
        try:
            if _about(entry) is not None:
                return
            await asyncio.to_thread(self._discard, entry)  # it may be damaged
            await self._wait_for_room(source.name)
            await self._fill_locked(source, entry, lock)
        finally:
            lock.release()
        await self._make_room(keep=entry.name)

    async def _fill_locked(self, source: ImageSource, entry: Path, lock: FileLock) -> None:
        growing = self._folder / "filling" / entry.name
        await asyncio.to_thread(self._discard, growing)
        growing.mkdir()
        growing.chmod(0o755)
        try:
            room, size = FillRoom(self._limit, lock.fd), None
            tier = await asyncio.to_thread(self._tier) if source.shared else None
            if tier is not None:
                config, size = await tier.fill(source, f"sha256:{entry.name.removeprefix('sha256-')}", growing, room)
            else:
                config = await source.fill(growing, room)
            if size is None:
                size = await asyncio.to_thread(bytes_on_disk, growing)
            names = await asyncio.to_thread(count_names, growing / "root")
            about = {"name": source.name, "digest": entry.name, "bytes": size, "names": names}
            about["config"] = config.to_json()
            (growing / ABOUT).write_text(json.dumps(about))
            await self._wait_for_room(source.name, size, lambda: growing.rename(entry))
        finally:
            await asyncio.to_thread(self._discard, growing)

    # the bound

    async def _wait_for_room(self, name: str, coming: int = 0, enter: Callable[[], object] = lambda: None) -> None:
        """Wait until an image of `coming` bytes fits beside the images in use; then call `enter`. Meanwhile no other process
        enters an image."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + ROOM_SECONDS
        while True:
            lock = await wait_for_lock(self._lock_path("room"))
            try:
                if await self._make_room(coming=coming):
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

    async def _make_room(self, keep: str = "", coming: int = 0) -> bool:
        """Delete the least recently used blobs, then images, until the cache is within its bound with `coming` bytes more.
        Return whether its images are; blobs that are being unpacked do not count."""
        async with self._evicting:
            return await asyncio.to_thread(self._evict, keep, coming)

    def _evict(self, keep: str, coming: int) -> bool:
        blobs, images = sorted(self._blob_files()), sorted(self._entries(), key=_used)
        kept = sum(one.bytes for one in images) + coming
        total = kept + sum(size for _, size, _ in blobs)
        for _, size, path in blobs:
            if total <= self._limit:
                return True
            if self._delete(path, self._blobs.lock_path(path.name)):
                total -= size
        for one in images:
            if kept <= self._limit:
                return True
            name = file_name(one.digest)
            if name != keep and self._delete(self._folder / "entries" / name, self._lock_path(name)):
                log.info("deleted %s from the cache of images: %d bytes", one.name, one.bytes)
                kept -= one.bytes
        return kept <= self._limit or kept == coming > 0

    def _bytes(self) -> int:
        return sum(size for _, size, _ in self._blob_files()) + sum(one.bytes for one in self._entries())

    def _prune(self, before: float) -> int:
        freed = 0
        for used, size, path in self._blob_files():
            if used < before and self._delete(path, self._blobs.lock_path(path.name)):
                freed += size
        for one in self._entries():
            name = file_name(one.digest)
            if one.last_used < before and self._delete(self._folder / "entries" / name, self._lock_path(name)):
                freed += one.bytes
        return freed

    def _delete(self, path: Path, lock_path: Path) -> bool:
        """Delete an image or a blob, unless somebody holds it."""
        lock = try_lock(lock_path, shared=False)
        if lock is None:
            return False
        try:
            if path.exists():
                self._discard(path)
        finally:
            lock.release_and_delete()
        return True

    def _discard(self, path: Path) -> None:
        """Delete a file or folder; whoever looks sees it whole or not at all."""
        rubbish = self._folder / "rubbish" / secrets.token_hex(8)
        with contextlib.suppress(FileNotFoundError):
            path.rename(rubbish)
            _remove(rubbish)

    def _remove_leftovers(self) -> None:
        """Delete what dead processes have left."""
        for path in (self._folder / "rubbish").iterdir():
            _remove(path)
        for path in (self._folder / "filling").iterdir():
            lock = try_lock(self._lock_path(path.name), shared=False)
            if lock is not None:
                self._discard(path)
                lock.release()

    def _blob_files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of use, the size and the path of each blob. A small blob that is being written has a hidden name."""
        for file in os.scandir(self._folder / "blobs"):
            with contextlib.suppress(FileNotFoundError):
                info = file.stat()
                if not file.name.startswith(".") or info.st_mtime < time.time() - _WRITE_SECONDS:
                    yield info.st_mtime, info.st_blocks * 512, Path(file.path)

    def _entries(self) -> Iterator[CacheEntry]:
        for folder in os.scandir(self._folder / "entries"):
            digest = folder.name.replace("-", ":", 1)
            try:
                about, used = _about(Path(folder.path)), folder.stat().st_mtime
            except FileNotFoundError:
                continue
            name, size = ("(damaged)", 0) if about is None else (about.name, about.bytes)
            yield CacheEntry(name, digest, size, used, held=False)

    def _is_held(self, name: str) -> bool:
        lock = try_lock(self._lock_path(name), shared=False)
        if lock is not None:
            lock.release()
        return lock is None


def _forget(tasks: dict[str, asyncio.Task[T]], key: str, done: asyncio.Task[T]) -> None:
    del tasks[key]
    if not done.cancelled():
        done.exception()  # it is raised in the callers that still wait, if there are any


@dataclass(frozen=True)
class _About:
    name: str
    bytes: int
    config: ImageConfig
    names: int
    """Number of files and folders when the image was unpacked."""


def _about(entry: Path) -> _About | None:
    """Return what is noted about an image; None if it is missing, or damaged: a machine that crashes loses what was written
    shortly before."""
    try:
        about = json.loads((entry / ABOUT).read_bytes())
        return _About(about["name"], about["bytes"], ImageConfig.from_json(about["config"]), about["names"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _is_full(error: Exception) -> bool:
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


def _used(entry: CacheEntry) -> float:
    return entry.last_used


def count_names(folder: Path) -> int:
    """Return the number of files and folders below a folder."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def bytes_on_disk(folder: Path) -> int:
    """Return the size of a folder with all that is in it. A file with several names counts once."""
    total, seen = 0, set()
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            info = os.lstat(os.path.join(above, name))
            if info.st_nlink == 1 or info.st_ino not in seen:
                total += info.st_blocks * 512
                seen.add(info.st_ino)
    return total


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)
