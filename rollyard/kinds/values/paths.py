"""Paths in a spec. They must be absolute, because a job on the allocation's node uses them, in a working folder of its
own. A YAML file may also have paths relative to that file; the CLI makes them absolute.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from rollyard.kinds.values.image_reference import normal_form

FIELDS = (
    ("spec", "model", "path"),
    ("spec", "model", "tokenizer"),
    ("spec", "engine", "vllm", "image"),
    ("spec", "sandbox", "images", "sharedFolder"),
    ("spec", "sandbox", "images", "credentialsFile"),
)
IMAGE_FIELDS = (("spec", "sandbox", "defaultImage"),)


def _check(path: str) -> str:
    if "\0" in path:
        raise ValueError("write a path without NUL characters")
    if not os.path.isabs(path):
        raise ValueError(
            "write an absolute path on the allocation's node (a YAML file may use a path relative to the file)"
        )
    return path


AbsolutePath = Annotated[str, AfterValidator(_check)]


def make_absolute(data: Any, base: str) -> None:
    """Resolve the relative paths of a manifest in place."""
    for field in FIELDS:
        _replace(data, field, lambda path: os.path.normpath(os.path.join(base, path)))
    for field in IMAGE_FIELDS:
        _replace(data, field, lambda image: normal_form(image, base))


def _replace(data: Any, field: Sequence[str], change: Callable[[str], str]) -> None:
    *above, last = field
    inner = data
    for part in above:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    if isinstance(inner, dict) and isinstance(inner.get(last), str):
        inner[last] = change(inner[last])
