"""JSON objects that a runner writes into a log, each from the beginning of a line on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_BEGIN = re.compile(r"^\{(?=\s*\")", re.MULTILINE)
MAX_ATTEMPTS = 200
"""Beginnings that turn out to be no JSON. Each costs the time to read the log once."""
_DECODER = json.JSONDecoder()


def documents(log: str, key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that have `key`."""
    position = attempts = 0
    while attempts < MAX_ATTEMPTS and (begin := _BEGIN.search(log, position)):
        try:
            document, position = _DECODER.raw_decode(log, begin.start())
        except (ValueError, RecursionError):  # also a number of thousands of digits, or thousands of nested values
            attempts += 1
            position = begin.end()
        else:
            if key in document:
                yield document


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield the objects in a list; whatever else a log has in its place is left out."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def text(value: object) -> str:
    return value if isinstance(value, str) else ""
