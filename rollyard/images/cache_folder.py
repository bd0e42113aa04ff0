"""The folder of a node's cache of images: what lies where, and how it is deleted. All node agents of a node share it.

`entries` has an unpacked image for each digest, complete or absent; `filling` has the ones that are being made; `blobs` has
downloaded layers; `names` which digest each name meant; `locks` one lock file for each image and blob; `rubbish` what is
being deleted. Who fills or deletes an image holds its lock exclusively. Who pins an image shares its lock. The kernel
releases the locks of dead processes.

Files of an image keep its modes, also 0777. So the folders above them are closed to other users of the node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from rollyard.host.removed_folder import remove
from rollyard.host.sandbox_account import close_to_others
from rollyard.images.blob_store import BlobStore, file_name
from rollyard.images.locks import try_lock
from rollyard.images.pinned_image import AboutImage

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
    """One image of the cache."""

    name: str
    """Name under which it was first asked for."""
    digest: str

    @property
    def pinned(self) -> bool:
        """Whether a process of this machine uses the image now."""
        return _is_locked(self.lock_path)


class CacheFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs = BlobStore(path / "blobs", path / "locks")

    def make(self) -> None:
        """Make the folders that are missing, and close all to other users. Raises OSError."""
        for name in ("", "entries", "filling", "blobs", "names", "locks", "rubbish"):
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
                name, size = ("(damaged)", 0) if about is None else (about.name, about.bytes)
                digest = path.name.replace("-", ":", 1)
                found.append(CacheEntry(path, self.lock_path(path.name), size, used, name, digest))
        return sorted(found, key=lambda one: one.last_used)

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
