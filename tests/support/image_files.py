"""Files of an image in a node's cache."""

from __future__ import annotations

import os
from pathlib import Path

from rollyard.images.pinned_image import PinnedImage


def place(image: PinnedImage, path: str) -> Path:
    """Return the file of this machine that the image shows at a path; one that does not exist, if it shows none."""
    found = image.files.find(os.fsencode(path))
    return image.layers[0] / ".wh.absent" if found is None else Path(os.fsdecode(found))


def names(image: PinnedImage, folder: str = "") -> list[str]:
    """Return the names in a folder of the image, sorted."""
    return [os.fsdecode(name) for name in image.files.names(os.fsencode(folder))]


def paths(image: PinnedImage) -> list[str]:
    """Return the paths of all files and folders of the image, sorted."""
    return sorted(os.fsdecode(path) for path, _ in image.files.walk())
