"""Built images, in the node's cache of images or in the shared folder: each layer once, and a small file for each image.

Folders below `built`: `images` has for each image NAME/TAG.json, its manifest, and NAME/TAG.used, whose time of change is that
of the last use. `blobs/sha256` has the layers and configurations. A build writes blobs first and the manifest last, so an
image is complete or absent. Builds share a lock while they write. Who holds it exclusively deletes images, and then the blobs
that no manifest names.

Built images are not copies: a deleted one must be built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.core.regular_file import open_regular
from rollyard.images.locks import FileLock, try_lock, wait_for_lock
from rollyard.images.oci_manifest import BadManifest, parse_json, read_manifest
from rollyard.images.parts import chosen, own_and_shared
from rollyard.images.whole_file import copy_whole, write_whole
from rollyard.kinds.values.image_reference import BuiltImage, built_image

READING_SECONDS = 3600.0
"""Seconds after the start of its last use for which a node may still be reading an image."""
LOCK_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.05
_MOST_MANIFEST = 8 << 20


@dataclass(frozen=True)
class BuiltEntry:
    image: BuiltImage
    path: Path
    digest: str
    """sha256 of the manifest."""
    parts: frozenset[str]
    """Digests of the layers and of the configuration; none if the manifest is damaged."""
    last_used: float
    """Time of the build or of the last use, in seconds since the epoch."""
    own_bytes: int = 0
    """Bytes on disk of the blobs that no other image here has: what its deletion frees."""
    shared_bytes: int = 0
    """Bytes on disk of the blobs that other images here have too."""


class BuiltImages:
    def __init__(self, folder: Path, needed: Callable[[BuiltImage], bool] = lambda image: False) -> None:
        """`folder`: a node's cache of images, or a shared folder. `needed`: whether an image must stay."""
        self._folder = folder / "built"
        self._images, self._blobs = self._folder / "images", self._folder / "blobs" / "sha256"
        self._needed = needed

    # writing

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Keep blobs that no image names yet. Raises OSError."""
        for made in (self._images, self._blobs):
            made.mkdir(parents=True, exist_ok=True)
        lock = await wait_for_lock(self._lock_path, shared=True)
        try:
            yield
        finally:
            lock.release()

    def add_layer(self, digest: str, size: int, file: Path) -> None:
        """Store a layer, as a further name of the file if that is on the same disk. Use while `writing`. Blocks."""
        path = self._blob(digest)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == size:  # a machine that crashed may have left a shorter one
                return
        copy_whole(file, path)

    def add_image(self, image: BuiltImage, manifest: bytes, config: bytes) -> None:
        """Give the name to the image, whose layers are stored. Use while `writing`. Blocks."""
        write_whole(self._blob(f"sha256:{hashlib.sha256(config).hexdigest()}"), config)
        path = Path(image.manifest(str(self._folder.parent)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, manifest)

    # reading

    def images(self) -> list[BuiltEntry]:
        """Return the images, the least recently used first. Raises OSError if one cannot be read: nobody knows its blobs."""
        found = sorted(self._entries(), key=lambda one: one.last_used)
        sizes = own_and_shared(found, self._sizes())
        return [
            replace(one, own_bytes=own, shared_bytes=shared) for one, (own, shared) in zip(found, sizes, strict=True)
        ]

    def bytes(self) -> int:
        """Return the bytes on disk of all layers and configurations."""
        return sum(self._sizes().values())

    # deletion

    def prune(self, unused_seconds: float) -> int:
        """Delete the images that nobody has used for this time. Return the number of freed bytes."""
        before = time.time() - unused_seconds
        return self.delete([one for one in self.images() if one.last_used < before])[1]

    def shrink(self, excess: int) -> int:
        """Delete the least recently used images until `excess` bytes are freed, but none that a node may be reading. Return
        the number of freed bytes."""
        before = time.time() - READING_SECONDS
        images, sizes = self.images(), self._sizes()
        unused = [one for one in images if one.last_used < before and not self._needed(one.image)]
        return self.delete(chosen(unused, images, sizes, excess))[1]

    def delete(self, images: Iterable[BuiltEntry]) -> tuple[list[BuiltImage], int]:
        """Delete images, but none that is needed or was built again meanwhile. Return those that are deleted, and the number
        of freed bytes. While builds write here for long, all stay. Blocks."""
        lock = self._lock(LOCK_SECONDS)
        if lock is None:
            return [], 0
        deleted = []
        try:
            for one in images:
                with contextlib.suppress(FileNotFoundError):
                    if not self._needed(one.image) and one.path.stat().st_mtime <= one.last_used:
                        one.path.unlink()
                        deleted.append(one.image)
            return deleted, self._sweep()
        finally:
            lock.release()

    def sweep(self) -> int:
        """Delete the blobs that no image names, unless a build is writing. Return the number of freed bytes. Blocks."""
        lock = self._lock(0)
        if lock is None:
            return 0
        try:
            return self._sweep()
        finally:
            lock.release()

    def _sweep(self) -> int:
        kept = {digest.removeprefix("sha256:") for one in self._entries() for digest in one.parts}
        before, freed = time.time() - READING_SECONDS, 0
        for path in _inside(self._blobs):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                if path.name not in kept and (not path.name.startswith(".") or info.st_mtime < before):
                    path.unlink()
                    freed += info.st_blocks * 512
        for path in self._images.rglob("*.used"):
            if not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)
        for folder in sorted((path for path in self._images.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return freed

    def _lock(self, seconds: float) -> FileLock | None:
        """Return the exclusive lock; None if builds share it all the time, or nothing was ever built here."""
        deadline = time.monotonic() + seconds
        while self._folder.is_dir():
            lock = try_lock(self._lock_path, shared=False)
            if lock is not None or time.monotonic() >= deadline:
                return lock
            time.sleep(_LOCK_POLL_SECONDS)
        return None

    @property
    def _lock_path(self) -> Path:
        return self._folder / "lock"

    def _blob(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")

    def _entries(self) -> Iterator[BuiltEntry]:
        for path in self._images.rglob("*.json"):
            name = path.parent.relative_to(self._images).as_posix()
            with contextlib.suppress(ValueError, FileNotFoundError, IsADirectoryError):
                image = built_image(f"{name}:{path.name.removesuffix('.json')}")
                with open_regular(path) as file:
                    data, used = file.read(_MOST_MANIFEST), os.fstat(file.fileno()).st_mtime
                with contextlib.suppress(FileNotFoundError):
                    used = max(used, path.with_suffix(".used").stat().st_mtime)
                yield BuiltEntry(image, path, f"sha256:{hashlib.sha256(data).hexdigest()}", _blobs_of(data), used)

    def _sizes(self) -> dict[str, int]:
        found = {}
        for path in _inside(self._blobs):
            with contextlib.suppress(FileNotFoundError):
                found[f"sha256:{path.name}"] = path.stat().st_blocks * 512
        return found


def mark_used(path: Path) -> None:
    """Note that the image with this manifest is used now."""
    with contextlib.suppress(OSError):
        path.with_suffix(".used").touch()


def _blobs_of(manifest: bytes) -> frozenset[str]:
    try:
        parsed = read_manifest(parse_json(manifest))
    except BadManifest:
        return frozenset()  # nobody can use the image
    return frozenset({parsed.config.digest, *(layer.digest for layer in parsed.layers)})


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []
