"""Patterns of file names, and the rules of a `.dockerignore`. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence


def pattern(text: str) -> re.Pattern[str]:
    """Return the expression of a pattern of whole paths: `*` and `?` match no slash, `**` matches any number of folders,
    `[a-z]` one character, and a backslash makes the next character plain."""
    parts, at = [], 0
    while at < len(text):
        sign = text[at]
        at += 1
        if sign == "*":
            if text[at : at + 1] != "*":
                parts.append("[^/]*")
                continue
            at += 1
            if text[at : at + 1] == "/":
                at += 1
                parts.append("(?:.*/)?")
            else:
                parts.append(".*")
        elif sign == "?":
            parts.append("[^/]")
        elif sign == "[" and (end := text.find("]", at + 1)) > 0:
            inner = text[at:end].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{inner}]")
            at = end + 1
        elif sign == "\\" and at < len(text):
            parts.append(re.escape(text[at]))
            at += 1
        else:
            parts.append(re.escape(sign))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return re.compile(re.escape(text))


class IgnoreRules:
    """The last rule that matches a path, or a folder above it, decides."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in lines:
            rule = line.strip()
            if not rule or rule.startswith("#"):
                continue
            ignored = not rule.startswith("!")
            path = posixpath.normpath(rule.removeprefix("!").strip().lstrip("/") or ".")
            self._rules.append((ignored, pattern(path)))
        self.has_exceptions = not all(ignored for ignored, _ in self._rules)
        """Whether a file below an ignored folder may be wanted."""

    def ignores(self, path: str) -> bool:
        """`path`: relative to the context, without `.` and `..`."""
        parts = path.split("/")
        above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        verdict = False
        for ignored, rule in self._rules:
            if ignored != verdict and any(rule.fullmatch(one) for one in above):
                verdict = ignored
        return verdict
