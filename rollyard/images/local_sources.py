"""Sources of images that are files or folders of this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.images.base import ImageConfig, ImageSource
from rollyard.images.blob_store import BlobStore
from rollyard.images.layout_source import LayoutSource
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.squashfs_source import SquashfsSource
from rollyard.kinds.values.image_reference import LayoutImage, PathImage


@dataclass(frozen=True)
class FolderInPlace:
    """A folder with a root file system. It is used where it is, without a copy."""

    root: Path
    config: ImageConfig = field(default_factory=ImageConfig)


def local_source(
    reference: LayoutImage | PathImage, blobs: BlobStore, resolved: ResolvedTags, limit_bytes: int
) -> ImageSource | FolderInPlace:
    """`limit_bytes`: greatest size of an image. Raises ImageNotFound for what must be built before."""
    if isinstance(reference, LayoutImage):
        return LayoutSource(reference, blobs, resolved)
    match reference.kind:
        case "folder":
            return FolderInPlace(Path(reference.path))
        case "sif" | "squashfs":
            return SquashfsSource(reference, resolved, limit_bytes)
        case "def":
            raise ImageNotFound(
                f"{reference.text} is a recipe: build the image once with `rollyard images build {reference.text}`, "
                "and name the image"
            )
        case "dockerfile":
            raise ImageNotFound(
                f"{reference.text} is a recipe: build the image once with `rollyard images build`, and name the image"
            )
