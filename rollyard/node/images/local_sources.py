"""Sources of images that are files or folders of this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.kinds.sandbox_template import SandboxImages
from rollyard.kinds.values.image_reference import LayoutImage, PathImage
from rollyard.node.images.base import ImageConfig, ImageSource


@dataclass(frozen=True)
class FolderInPlace:
    """A folder with a root file system. It is used where it is, without a copy."""

    root: Path
    config: ImageConfig = field(default_factory=ImageConfig)


def local_source(reference: LayoutImage | PathImage, settings: SandboxImages) -> ImageSource | FolderInPlace:
    """Raises ImageNotFound for a form that is not supported."""
    if isinstance(reference, PathImage) and reference.kind == "folder":
        return FolderInPlace(Path(reference.path))
    raise ImageNotFound(f"{reference.text} is not supported yet")
