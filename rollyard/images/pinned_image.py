"""An unpacked image in the node's cache, and the pin that keeps it there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import ImageConfig
from rollyard.images.layer_stack import LayerStack
from rollyard.images.locks import FileLock
from rollyard.images.tree_size import count_names
from rollyard.images.unpacked_layers import ABOUT as ABOUT_LAYER
from rollyard.images.unpacked_layers import UnpackedLayer, seen_layers

ABOUT = "image.json"
"""File of an entry. An entry without it is damaged, and nobody new uses it."""
DELETED = "it was deleted from the node's cache while rollouts used it"


@dataclass(frozen=True)
class AboutImage:
    """The file `ABOUT`."""

    name: str
    """Name under which the image was first asked for."""
    digest: str
    config: ImageConfig
    layers: Sequence[UnpackedLayer]
    """The topmost first. A layer without a name is the folder `root` of the entry itself, which has all of the image: that of a
    file without layers."""

    @classmethod
    def read(cls, entry: Path) -> Self | None:
        """Return what is noted about an image; None if it is missing, or damaged: a machine that crashes loses what was
        written shortly before."""
        try:
            about = json.loads((entry / ABOUT).read_bytes())
            config = ImageConfig.from_json(about["config"])
            if "layers" in about:
                layers = [UnpackedLayer.from_json(one) for one in about["layers"]]
            else:
                layers = [UnpackedLayer("", about["bytes"], about["names"], whole=True)]
            return cls(about["name"], about["digest"], config, layers)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def has_layers(self, folder: Path) -> bool:
        """Return whether the folder of unpacked layers has those of the image."""
        return all((folder / one.name / ABOUT_LAYER).exists() for one in seen_layers(self.layers) if one.name)

    def write(self, entry: Path) -> None:
        """Releases that know no layers take an image with `layers` for damaged, and one with `bytes` and `names` as it is."""
        about: dict[str, object] = {"name": self.name, "digest": self.digest, "config": self.config.to_json()}
        if self.layers[0].name:
            about["layers"] = [asdict(one) for one in self.layers]
        else:
            about |= {"bytes": self.layers[0].bytes, "names": self.layers[0].names}
        (entry / ABOUT).write_text(json.dumps(about))


class PinnedImage:
    """An image on this machine. It is not deleted until `release`. Use as a context manager, or call `release`."""

    def __init__(self, name: str, digest: str, entry: Path, layers: Path, about: AboutImage, lock: FileLock) -> None:
        """`entry`: the image's folder in the cache. `layers`: the folder with the unpacked layers."""
        self.name = name
        self.digest = digest
        self.config = about.config
        self._folders = [layers / one.name if one.name else entry for one in seen_layers(about.layers)]
        self.layers: tuple[Path, ...] = tuple(folder / "root" for folder in self._folders)
        """Folders that an overlay shows as the image's root file system (`layer_stack.py`), the topmost first."""
        self._place = entry, layers
        self._about = about
        self._lock = lock

    @property
    def files(self) -> LayerStack:
        """The image's files."""
        return LayerStack(self.layers)

    def again(self) -> PinnedImage:
        """Pin the image once more, with a `release` of its own. No name is looked up. Raises ImageUnavailable."""
        self.check()
        return PinnedImage(self.name, self.digest, *self._place, self._about, self._lock.again())

    def check(self) -> None:
        """Raise ImageUnavailable if somebody has deleted the image or a layer of it from the cache meanwhile."""
        entry, layers = self._place
        if not (entry / ABOUT).exists() or not self._about.has_layers(layers):
            raise ImageUnavailable(self.name, f"{DELETED}; it is unpacked again once they have ended")

    def check_files(self) -> None:
        """Raise ImageUnavailable if files of the image were deleted. Blocks, for a second with a million files. The layers that
        lack files are unpacked again when nobody pins an image of them any more."""
        self.check()
        lost = 0
        for folder, layer in zip(self._folders, self._about.layers, strict=False):
            if (left := count_names(folder / "root")) < layer.names:
                (folder / (ABOUT_LAYER if layer.name else ABOUT)).unlink(missing_ok=True)
                lost += layer.names - left
        if lost:
            raise ImageUnavailable(self.name, f"{lost} of its files and folders were deleted from the node's cache")

    def release(self) -> None:
        """Let go of the image. A second call has no effect."""
        if self._lock.held:
            with contextlib.suppress(OSError):
                os.utime(self._place[0])
            self._lock.release()

    def __enter__(self) -> PinnedImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
