"""A look at the default image of a pool, on the machine where the pool is applied. The nodes may have other files."""

from __future__ import annotations

import os

from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.image_reference import BuiltImage, PathImage, RegistryImage, parse_image


def default_image_warning(obj: object) -> str | None:
    """Return a sentence if the image is a file or a folder that this machine lacks, or a recipe."""
    image = obj.spec.sandbox.default_image if isinstance(obj, RolloutPool) else None
    if image is None or isinstance(reference := parse_image(image), RegistryImage | BuiltImage):
        return None
    if (
        isinstance(reference, PathImage)
        and reference.kind in ("def", "dockerfile")
        and not os.path.isdir(reference.path)
    ):
        return f"the defaultImage {image} is a recipe: build the image with `rollyard images build`, and name the image"
    if os.path.exists(reference.path):
        return None
    return (
        f"this machine has no {reference.path}, the defaultImage: if the nodes have none either, rollouts wait for it, and "
        "the pool's condition ImagesReady says so"
    )
