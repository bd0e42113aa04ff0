"""Paths in a spec. They must be absolute, because a job on the allocation's node uses them, in a working folder of its
own. A YAML file may also have paths relative to that file; the CLI makes them absolute.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

FIELDS = (
    ("spec", "model", "path"),
    ("spec", "model", "tokenizer"),
    ("spec", "engine", "vllm", "image"),
    ("spec", "sandbox", "defaultImage"),
)


def _check(path: str) -> str:
    if not os.path.isabs(path):
        raise ValueError(
            "write an absolute path on the allocation's node (a YAML file may use a path relative to the file)"
        )
    return path


AbsolutePath = Annotated[str, AfterValidator(_check)]


def make_absolute(data: Any, base: str) -> None:
    """Resolve the relative paths of a manifest in place."""
    for *above, last in FIELDS:
        inner = data
        for part in above:
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if isinstance(inner, dict) and isinstance(inner.get(last), str):
            inner[last] = os.path.normpath(os.path.join(base, inner[last]))
