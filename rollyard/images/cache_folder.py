"""The folder of a node's cache of images: what lies where, and how it is deleted. All node agents of a node share it.

`layers` has unpacked layers (`unpacked_layers.py`); `entries` has an image for each digest, complete or absent: the names of
its layers, or a root file system of its own; `filling` has the layers and images that are being made; `blobs` has downloaded
layers; `names` which digest each name meant; `locks` one lock file for each image, layer and blob; `rubbish` what is being
deleted. Who fills or deletes an image holds its lock exclusively. Who pins an image shares its lock. The kernel releases the
locks of dead processes.

A layer stays as long as an image names it. So an image is deleted before its layers, and appears after them; a crash between
the two leaves layers that no image names, which are deleted like blobs.

Files of an image keep its modes, also 0777. So the folders above them are closed to other users of the node.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.host.removed_folder import remove
from rollyard.host.sandbox_account import close_to_others
from rollyard.images.blob_store import BlobStore, file_name
from rollyard.images.locks import try_lock
from rollyard.images.pinned_image import AboutImage
from rollyard.images.unpacked_layers import UnpackedLayer, UnpackedLayers

_WRITE_SECONDS = 3600.0
"""Age at which a hidden file is left over from a dead process."""


@dataclass(frozen=True)
class CachedBlob:
    path: Path
    lock_path: Path
    bytes: int
    last_used: float
    """In seconds since the epoch."""


@dataclass(frozen=True)
class CacheEntry(CachedBlob):
    """One image of the cache. `bytes`: those of all its layers."""

    name: str
    """Name under which it was first asked for."""
    digest: str
    layers: Mapping[str, int]
    """Name of a layer -> its bytes; the image's own name, for what is in its own folder."""
    shared_bytes: int = 0
    """Bytes of layers that further images of the cache have."""
    damaged: bool = False

    @property
    def own_bytes(self) -> int:
        """Bytes that its deletion frees."""
        return self.bytes - self.shared_bytes

    @property
    def pinned(self) -> bool:
        """Whether a process of this machine uses the image now."""
        return _is_locked(self.lock_path)


class CacheFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs = BlobStore(path / "blobs", path / "locks")
        self.layers = UnpackedLayers(
            path / "layers", path / "filling", path / "locks", self.discard, self._is_layer_used
        )

    def make(self) -> None:
        """Make the folders that are missing, and close all to other users. Raises OSError."""
        for name in ("", "entries", "layers", "filling", "blobs", "names", "locks", "rubbish"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
            close_to_others(self.path / name)

    def entry(self, digest: str) -> Path:
        return self.path / "entries" / file_name(digest)

    def lock_path(self, name: str) -> Path:
        return self.path / "locks" / name

    def is_pinned(self, digest: str) -> bool:
        """Return whether a process of this machine uses the image now."""
        return _is_locked(self.lock_path(file_name(digest)))

    def entries(self) -> list[CacheEntry]:
        """Return the images, the least recently used first."""
        found = []
        for path in _inside(self.path / "entries"):
            with contextlib.suppress(FileNotFoundError):
                about, used = AboutImage.read(path), path.stat().st_mtime
                name, listed = ("(damaged)", ()) if about is None else (about.name, about.layers)
                layers = {one.name or path.name: one.bytes for one in listed}
                size, digest = sum(layers.values()), path.name.replace("-", ":", 1)
                lock = self.lock_path(path.name)
                found.append(CacheEntry(path, lock, size, used, name, digest, layers, damaged=about is None))
        users = Counter(name for one in found for name in one.layers)
        for number, one in enumerate(found):
            shared = sum(size for name, size in one.layers.items() if users[name] > 1)
            found[number] = replace(one, shared_bytes=shared)
        return sorted(found, key=lambda one: one.last_used)

    def unnamed_layers(self) -> list[CachedBlob]:
        """Return the layers that no image names, the least recently used first. Some of them may be of images that are being
        made."""
        found, named = [], {name for one in self.entries() for name in one.layers}
        for path in _inside(self.path / "layers"):
            if path.name not in named:
                with contextlib.suppress(FileNotFoundError):
                    layer, used = UnpackedLayer.read(path), path.stat().st_mtime
                    found.append(CachedBlob(path, self.layers.lock_path(path.name), layer.bytes if layer else 0, used))
        return sorted(found, key=lambda one: one.last_used)

    def delete_layers(self, layers: Sequence[CachedBlob]) -> list[CachedBlob]:
        """Delete the layers that no image names now and that nobody needs who makes one. Return those that are deleted."""
        with contextlib.ExitStack() as stack:
            locked = []
            for one in layers:
                if (lock := try_lock(one.lock_path, shared=False)) is not None:
                    stack.callback(lock.release_and_delete)
                    locked.append(one)
            # Nobody can make an image with a locked layer now. An image that somebody uses may have lost its list of layers.
            images = self.entries() if locked else []
            if any(one.damaged and one.pinned for one in images):
                return []
            named = {name for one in images for name in one.layers}
            unnamed = [one for one in locked if one.path.name not in named]
            for one in unnamed:
                self.discard(one.path)
            return unnamed

    def _is_layer_used(self, name: str) -> bool:
        return any(one.pinned for one in self.entries() if name in one.layers)

    def cached_blobs(self) -> list[CachedBlob]:
        """Return the blobs, the least recently used first. A small blob that is being written has a hidden name."""
        found = []
        for path in _inside(self.path / "blobs"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                if not path.name.startswith(".") or info.st_mtime < time.time() - _WRITE_SECONDS:
                    lock_path = self.blobs.lock_path(path.name)
                    found.append(CachedBlob(path, lock_path, info.st_blocks * 512, info.st_mtime))
        return sorted(found, key=lambda one: one.last_used)

    def delete(self, one: CachedBlob) -> bool:
        """Delete an image or a blob, unless somebody uses it."""
        lock = try_lock(one.lock_path, shared=False)
        if lock is None:
            return False
        try:
            if one.path.exists():
                self.discard(one.path)
        finally:
            lock.release_and_delete()
        return True

    def discard(self, path: Path) -> None:
        """Delete a file or folder; whoever looks sees it whole or not at all."""
        rubbish = self.path / "rubbish" / secrets.token_hex(8)
        with contextlib.suppress(FileNotFoundError):
            path.rename(rubbish)
            remove(rubbish)

    def tidy(self) -> None:
        """Delete what dead processes have left in the cache, if there is one. Raises OSError."""
        if not self.path.is_dir():
            return
        self.make()
        for path in (self.path / "rubbish").iterdir():
            remove(path)
        for path in (self.path / "filling").iterdir():
            lock = try_lock(self.lock_path(path.name), shared=False)
            if lock is not None:
                self.discard(path)
                lock.release()


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder. A cache that nobody has filled has no folders."""
    with contextlib.suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def _is_locked(path: Path) -> bool:
    lock = try_lock(path, shared=False)
    if lock is not None:
        lock.release()
    return lock is None
