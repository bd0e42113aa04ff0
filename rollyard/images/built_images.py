"""Archives of built images, in the node's cache of images or in the shared folder. They are not copies: a deleted one must
be built again."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rollyard.images.locks import try_lock
from rollyard.kinds.values.image_reference import BuiltImage, built_image

READING_SECONDS = 3600.0
"""Seconds after the start of its last use for which a node may still be reading an archive."""


@dataclass(frozen=True)
class BuiltArchive:
    image: BuiltImage
    path: Path
    bytes: int
    last_used: float
    """Time of the build or of the last use, in seconds since the epoch."""


class BuiltImages:
    def __init__(self, folder: Path, needed: Callable[[BuiltImage], bool] = lambda image: False) -> None:
        """`folder`: a node's cache of images, or a shared folder. `needed`: whether an image must stay."""
        self._folder = folder / "built"
        self._needed = needed

    def archives(self) -> list[BuiltArchive]:
        """Return the archives, the least recently used first."""
        found = []
        for path in self._folder.rglob("*.tar"):
            name = path.parent.relative_to(self._folder).as_posix()
            with contextlib.suppress(ValueError, FileNotFoundError):
                image, info = built_image(f"{name}:{path.stem}"), path.stat()
                found.append(BuiltArchive(image, path, info.st_blocks * 512, max(info.st_atime, info.st_mtime)))
        return sorted(found, key=lambda archive: archive.last_used)

    def prune(self, unused_seconds: float) -> int:
        """Delete the archives that nobody has used for this time. Return the number of freed bytes."""
        before = time.time() - unused_seconds
        return self.delete([one for one in self.archives() if one.last_used < before]) + self._delete_leftovers()

    def shrink(self, excess: int) -> int:
        """Delete the least recently used archives until `excess` bytes are freed, but none that a node may be reading. Return
        the number of freed bytes."""
        freed, before = 0, time.time() - READING_SECONDS
        for one in self.archives():
            if freed < excess and one.last_used < before:
                freed += self.delete([one])
        return freed + self._delete_leftovers()

    def delete(self, archives: Iterable[BuiltArchive]) -> int:
        """Delete archives, but none that is needed or that a build is replacing. Return the number of freed bytes."""
        freed = 0
        for one in archives:
            lock = try_lock(one.path.with_name(f".{one.path.name}.lock"), shared=False)
            if lock is None:
                continue  # a build is replacing it
            try:
                # an archive that was replaced in the meantime stays
                if not self._needed(one.image) and one.path.stat().st_mtime <= one.last_used:
                    one.path.unlink()
                    freed += one.bytes
            except FileNotFoundError:
                pass
            finally:
                lock.release_and_delete()
            with contextlib.suppress(OSError):
                one.path.parent.rmdir()
        return freed

    def _delete_leftovers(self) -> int:
        """Delete the incomplete archives of killed builds. Return the number of freed bytes."""
        freed, before = 0, time.time() - READING_SECONDS
        for path in self._folder.rglob(".*.tar.new"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                lock = try_lock(path.with_suffix(".lock"), shared=False) if info.st_mtime < before else None
                if lock is not None:
                    path.unlink(missing_ok=True)
                    lock.release_and_delete()
                    freed += info.st_blocks * 512
        return freed


def mark_used(path: Path) -> None:
    """Note that an archive is used now, in its time of access. Its time of change shows which content was read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        os.utime(file.fileno(), ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
