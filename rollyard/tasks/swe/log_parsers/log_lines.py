"""The lines of a log as people see them, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_CHARACTERS = 16 << 20
MAX_LINE = 4096
"""Longer lines are cut. Runners write a verdict on a shorter line, and a pattern needs at most this many steps."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|[\x00-\x08\x0e-\x1a]")
_EMPTY_LINES = re.compile(r"[\r\n]{3,}")
_LINE = re.compile(r"([^\r\n]*)\r*(?:\n|\r|\Z)")


def lines(log: str) -> Iterator[str]:
    """Yield lines without colours, control characters and trailing blanks, and one empty line of several."""
    for match in _LINE.finditer(_EMPTY_LINES.sub("\n\n", _ESCAPES.sub("", log))):
        start, end = match.span(1)
        yield match.string[start : min(end, start + MAX_LINE)].rstrip()
