"""An unpacked image in the node's cache, and the pin that keeps it there."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import ImageConfig
from rollyard.images.locks import FileLock

ABOUT = "image.json"
"""File of an entry. An entry without it is damaged, and nobody new uses it."""
DELETED = "it was deleted from the node's cache while rollouts used it"


@dataclass(frozen=True)
class AboutImage:
    """The file `ABOUT`."""

    name: str
    """Name under which the image was first asked for."""
    digest: str
    bytes: int
    names: int
    """Number of files and folders when the image was unpacked."""
    config: ImageConfig

    @classmethod
    def read(cls, entry: Path) -> Self | None:
        """Return what is noted about an image; None if it is missing, or damaged: a machine that crashes loses what was
        written shortly before."""
        try:
            about = json.loads((entry / ABOUT).read_bytes())
            config = ImageConfig.from_json(about["config"])
            return cls(about["name"], about["digest"], about["bytes"], about["names"], config)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, entry: Path) -> None:
        (entry / ABOUT).write_text(json.dumps({**vars(self), "config": self.config.to_json()}))


class PinnedImage:
    """An image on this machine. It is not deleted until `release`. Use as a context manager, or call `release`."""

    def __init__(self, name: str, digest: str, entry: Path, about: AboutImage, lock: FileLock) -> None:
        self.name = name
        self.digest = digest
        self.root = entry / "root"
        self.config = about.config
        self._about = about
        self._lock = lock

    def again(self) -> PinnedImage:
        """Pin the image once more, with a `release` of its own. No name is looked up. Raises ImageUnavailable."""
        self.check()
        return PinnedImage(self.name, self.digest, self.root.parent, self._about, self._lock.again())

    def check(self) -> None:
        """Raise ImageUnavailable if somebody has deleted the image from the cache meanwhile."""
        if not (self.root.parent / ABOUT).exists():
            raise ImageUnavailable(self.name, f"{DELETED}; it is unpacked again once they have ended")

    def check_files(self) -> None:
        """Raise ImageUnavailable if files of the image were deleted. Blocks, for a second with a million files. The image is
        unpacked again when nobody pins it any more."""
        self.check()
        if (left := count_names(self.root)) < self._about.names:
            (self.root.parent / ABOUT).unlink(missing_ok=True)
            raise ImageUnavailable(
                self.name, f"{self._about.names - left} of its files and folders were deleted from the node's cache"
            )

    def release(self) -> None:
        """Let go of the image. A second call has no effect."""
        if self._lock.held:
            with contextlib.suppress(OSError):
                os.utime(self.root.parent)
            self._lock.release()

    def __enter__(self) -> PinnedImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def count_names(folder: Path) -> int:
    """Return the number of files and folders below a folder."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))
