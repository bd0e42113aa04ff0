"""A look at the files that a pool names, on the machine where the pool is applied. The nodes may have other files."""

from __future__ import annotations

import os

from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.image_reference import BuiltImage, PathImage, RegistryImage, parse_image


def missing_file_warning(obj: object) -> str | None:
    """Return a sentence if the model, its tokenizer or the default image is not on this machine."""
    if isinstance(obj, InferencePool):
        return _model_warning(obj)
    return _image_warning(obj.spec.sandbox.default_image) if isinstance(obj, RolloutPool) else None


def _model_warning(pool: InferencePool) -> str | None:
    model = pool.spec.model
    for path, what in ((model.path, "model"), (model.tokenizer, "tokenizer")):
        if path is not None and not os.path.exists(path):
            return (
                f"this machine has no {path}, the {what}: if the nodes have none either, the pool never becomes Ready, and its "
                "condition Ready says so"
            )
    return None


def _image_warning(image: str | None) -> str | None:
    """Return a sentence if the image is a file or a folder that this machine lacks, or a recipe."""
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
