"""Blobs of images: layers, manifests and configurations, by digest. Images that share a layer download it once."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from rollyard.core.aio import end_tasks
from rollyard.images.locks import FileLock, try_lock, wait_for_lock_unless
from rollyard.images.oci_manifest import Descriptor
from rollyard.images.whole_file import write_whole

DOWNLOADS = 4
"""Downloads of one image at the same time."""


class BlobOrigin(Protocol):
    """A registry, or a file or folder with blobs."""

    async def blob(self, blob: Descriptor, path: Path) -> None:
        """Write a blob, verified, to `path`, which is absent or holds the start of the blob. Raises ImageUnavailable,
        DiskFull."""


class BlobStore:
    """Blobs as files of `folder`. An incomplete blob has the suffix `.part`; the next download continues it."""

    def __init__(self, folder: Path, locks: Path) -> None:
        self._folder = folder
        self._locks = locks

    def path(self, digest: str) -> Path:
        return self._folder / file_name(digest)

    def lock_path(self, name: str) -> Path:
        return self._locks / f"blob-{name.removesuffix('.part')}"

    def keep(self, data: bytes) -> str:
        """Store a small blob and return its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = self.path(digest)
        write_whole(path, data)
        return digest

    def read(self, digest: str) -> bytes | None:
        """Return a small blob; None if it is absent or damaged."""
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            return None
        return data if f"sha256:{hashlib.sha256(data).hexdigest()}" == digest else None

    async def fetch(self, origin: BlobOrigin, blobs: Sequence[Descriptor], pins: ExitStack) -> list[Path]:
        """Return the files of the blobs, verified, and downloaded where necessary. No eviction deletes them until `pins` is
        closed.

        Raises ImageUnavailable and DiskFull.
        """
        places, found = asyncio.Semaphore(DOWNLOADS), {blob.digest: blob for blob in blobs}

        async def one(blob: Descriptor) -> None:
            async with places:
                pins.callback((await self._fetch(origin, blob)).release)

        tasks = [asyncio.create_task(one(blob)) for blob in found.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end_tasks(*tasks)
        return [self.path(blob.digest) for blob in blobs]

    async def _fetch(self, origin: BlobOrigin, blob: Descriptor) -> FileLock:
        path = self.path(blob.digest)
        lock_path = self.lock_path(path.name)
        fetched = False
        while True:
            shared = try_lock(lock_path, shared=True)
            if shared is not None:
                if path.exists() and (fetched or await asyncio.to_thread(_is_intact, path, blob.digest)):
                    os.utime(path)
                    return shared
                path.unlink(missing_ok=True)
                shared.release()
            lock = await wait_for_lock_unless(lock_path, path.exists)
            if lock is None:
                continue
            try:
                if not path.exists():
                    part = path.with_name(f"{path.name}.part")
                    await origin.blob(blob, part)
                    part.rename(path)
                    fetched = True  # the origin has verified it
            finally:
                lock.release()


def _is_intact(path: Path, digest: str) -> bool:
    """A machine that crashed may have left a file that is too short, and a disk may have damaged one."""
    algorithm, _, expected = digest.partition(":")
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest() == expected
    except FileNotFoundError:
        return False


def file_name(digest: str) -> str:
    """Return the name of a digest's file or folder."""
    return digest.replace(":", "-")
