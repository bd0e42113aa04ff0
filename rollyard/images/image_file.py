"""Files of this machine that hold an image, and the digests that are remembered of them.

A digest is computed once for each content of a file. A file whose size, time of change or inode is another one is read
again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from rollyard.core.errors import ImageUnavailable
from rollyard.images.locks import wait_for_lock
from rollyard.images.resolved_tags import ResolvedTags

_TRIES = 3
"""Number of times a file is read that others replace meanwhile."""


class ImageFile:
    def __init__(self, name: str, path: Path, what: str, resolved: ResolvedTags, missing: str = "") -> None:
        """`path`: the file; `what`: the file's kind, for errors; `missing`: sentence about a missing file."""
        self._missing = missing or f"there is no {what} {path}: make it, or correct the name"
        self._name = name
        self._path = path
        self._resolved = resolved

    async def digest(self, compute: Callable[[], str]) -> str:
        """Return the digest of the present content. One process on a node computes it, in a thread.

        Raises ImageUnavailable and the errors of `compute`.
        """
        if (known := await asyncio.to_thread(self.known)) is not None:
            return known
        lock = await wait_for_lock(self._resolved.path(self._name).with_suffix(".lock"))
        try:
            if (known := await asyncio.to_thread(self.known)) is not None:
                return known
            for _ in range(_TRIES):
                identity = self.identity()
                digest = await asyncio.to_thread(compute)
                if self.identity() == identity:
                    self._resolved.keep(self._name, digest, identity=identity)
                    return digest
        finally:
            lock.release_and_delete()
        raise self.changed()

    def known(self) -> str | None:
        """Return the digest of the present content, if it has been computed. Raises ImageUnavailable."""
        found = self._resolved.find(self._name)
        return found.digest if found is not None and found.identity == self.identity() else None

    def identity(self) -> str:
        """Return a text that changes with the file. It may change without it: a file of an overlay whose layers lie on several
        file systems may get another inode at any time (Documentation/filesystems/overlayfs.rst, Inode properties). Raises
        ImageUnavailable."""
        try:
            info = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise ImageUnavailable(self._name, self._missing, permanent=True) from None
        except OSError as error:
            raise ImageUnavailable(self._name, f"{self._path} cannot be read: {error.strerror}") from None
        return f"{info.st_size}:{info.st_mtime_ns}:{info.st_ino}"

    def changed(self) -> ImageUnavailable:
        """Return the error of an image that was replaced while it was read."""
        return ImageUnavailable(self._name, f"{self._path} changed while it was read: it is tried again")
