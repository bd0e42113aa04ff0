"""Patterns for paths, as in .gitignore. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

_PIECES = {"**/": r"(?:.*/)?", "/**": r"/.*", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
_SPECIAL, _IN_BRACKETS = re.compile(r"[*?\[]"), re.compile(r"\[([*?\[])\]")
_PIECE = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[[^/\]]+\]|.", re.DOTALL)


class PathPatterns:
    """A list of patterns. One with a slash before its end begins at the top. One that names a folder means all below it."""

    def __init__(self, patterns: Iterable[str]) -> None:
        joined = "|".join(map(_expression, patterns))
        self._expression = re.compile(joined, re.DOTALL) if joined else None

    @classmethod
    def listed(cls, text: str) -> Self:
        """Return the patterns that a text names, with white space between them."""
        return cls(text.split())

    def match(self, path: str) -> bool:
        return self._expression is not None and self._expression.fullmatch(path) is not None


def only_path(pattern: str) -> str | None:
    """Return the path that is all that a pattern names, without the slash before it; None for any other pattern."""
    if not pattern.startswith("/") or _SPECIAL.search(_IN_BRACKETS.sub("", pattern)):
        return None
    return _IN_BRACKETS.sub(r"\1", pattern.strip("/"))


def _expression(pattern: str) -> str:
    below = r"/.+" if pattern.endswith("/") else r"(?:/.+)?"
    body = pattern.rstrip("/")
    top = "" if "/" in body else r"(?:.*/)?"
    return top + "".join(map(_piece, _PIECE.findall(body.lstrip("/")))) + below


def _piece(piece: str) -> str:
    if len(piece) > 2 and piece.startswith("["):
        inner = piece[1:-1].replace("\\", r"\\").replace("[", r"\[")
        return f"[^{inner[1:]}]" if inner[0] in "!^" and len(inner) > 1 else f"[{inner}]"
    return _PIECES.get(piece) or re.escape(piece)
