"""JSON objects in files of a model's folder. Somebody else wrote these files, so they are read within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollyard.core.errors import FileMissing, Invalid
from rollyard.core.regular_file import open_regular

MAX_BYTES = 16 << 20
"""Greatest size of a configuration. Real ones have less than 1 MB."""
SHOWN_CHARS = 80


def read_object(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file with a JSON object of at most `most` bytes. Raises FileMissing, Invalid."""
    try:
        with open_regular(path) as file:
            text = file.read(most + 1)
    except FileNotFoundError:
        raise FileMissing(f"{path} is missing; the model must be a folder in Hugging Face layout") from None
    except (OSError, ValueError) as error:
        raise Invalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > most:
        raise Invalid(f"{path} has more than {most >> 20} MiB, so it is not what its name says")
    return parse_object(text, str(path))


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object that `name` contains. Raises Invalid."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{name} is not valid JSON: {error}") from None
    except RecursionError:
        raise Invalid(f"{name} is not valid JSON: it is nested too deeply") from None
    if not isinstance(data, dict):
        raise Invalid(f"{name} must contain a JSON object")
    return data


def shown(value: Any) -> str:
    """Return a value as JSON, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"
