"""Metadata of tasks: what their makers want to know about them later, such as difficulty and source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, JsonValue

MAX_BYTES = 4096
"""Greatest length of a task's metadata as JSON. They are stored with each rollout."""
MAX_ITEMS = 32
MAX_ITEM_CHARS = 512
"""Greatest length of an item. A longer text is kept, and cannot be filtered by."""
_NAME = re.compile(r"[^=\x00-\x1f\ud800-\udfff]{1,128}")


def _check(metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name in metadata:
        if not _NAME.fullmatch(name):
            raise ValueError(f"write names of 1 to 128 characters without `=`, not {name[:40]!r}")
    if len(metadata) > MAX_ITEMS:
        raise ValueError(f"write at most {MAX_ITEMS} names")
    if len(json.dumps(metadata)) > MAX_BYTES:
        raise ValueError(f"write at most {MAX_BYTES} bytes of JSON")
    return metadata


Metadata = Annotated[dict[str, JsonValue], AfterValidator(_check)]


def item(name: str, value: JsonValue) -> str | None:
    """Return the text by which rollouts are found, such as `difficulty=hard` or `level=3`; None for a list, an object, or a
    long text."""
    if isinstance(value, list | dict):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = f"{name}={value if isinstance(value, str) else json.dumps(value)}"
    return text if len(text) <= MAX_ITEM_CHARS else None


def items(metadata: Mapping[str, JsonValue]) -> list[str]:
    """Return the items of all values by which rollouts can be found."""
    return [found for name, value in metadata.items() if (found := item(name, value)) is not None]
