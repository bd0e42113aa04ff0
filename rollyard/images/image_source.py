"""The interface of the places that images come from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollyard.images.base import FillRoom, ImageConfig
from rollyard.images.unpacked_layers import HeldLayers, UnpackedLayer


@dataclass(frozen=True)
class LayerFile:
    """A layer of an image: a gzip, zstd or plain tar archive."""

    digest: str
    """sha256 of the file."""
    diff_id: str
    """sha256 of the tar archive in it, as the image says."""
    file: Path


@dataclass(frozen=True)
class FilledImage:
    config: ImageConfig
    layers: Sequence[UnpackedLayer] = ()
    """Its layers, the topmost first. None: the folder `root` that was filled has all of the image."""
    bytes: int | None = None
    """Bytes of `root` on disk, if they are known."""


class ImageSource(Protocol):
    """A place from which one image comes."""

    @property
    def name(self) -> str:
        """Normal form of the image's name, for errors."""

    @property
    def shared(self) -> bool:
        """Whether the shared tier keeps a copy. False for files that lie on a shared file system anyway."""

    async def key(self) -> str:
        """Return `sha256:` and 64 hexadecimal digits that stand for the content that `fill` gives on this machine.
        Raises ImageUnavailable."""

    def known(self) -> str | None:
        """Return what `key` would return; None if a registry would be asked, or a file read."""

    async def fill(self, folder: Path, room: FillRoom, layers: HeldLayers) -> FilledImage:
        """Complete the layers that are missing in `layers`. For an image without layers, make `root` in `folder`, which is
        empty. The account of the sandboxes owns the files. Raises ImageUnavailable and DiskFull."""

    async def layer_files(self, pins: ExitStack) -> Sequence[LayerFile]:
        """Return the files of the layers, the lowest first, fetched where necessary, and keep them until `pins` is closed;
        none for a file without layers. Raises ImageUnavailable and DiskFull."""
