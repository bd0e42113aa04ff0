"""The verdict of a test runner on one test, and the verdicts of a whole log.

The lines of a log as people see them, within limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum


class LogStatus(StrEnum):
    """Verdict on one test. An expected failure that passed, which no runner counts as a failure by default, is PASSED."""

    SKIPPED = "SKIPPED"
    PASSED = "PASSED"
    XFAIL = "XFAIL"
    FAILED = "FAILED"
    ERROR = "ERROR"


_RANK = {status: rank for rank, status in enumerate(LogStatus)}
MAX_NAMES = 64 << 20
"""Characters of all names together. Names after that are left out, so a log cannot fill the memory."""


class Results(dict[str, LogStatus]):
    """LogStatus by test. The worst status of a name counts, so a forged line never makes a failed test a passed one."""

    _room = MAX_NAMES

    def add(self, name: str, status: LogStatus) -> None:
        name = name.strip()
        if name in self:
            if _RANK[status] > _RANK[self[name]]:
                self[name] = status
        elif name and len(name) <= self._room:
            self._room -= len(name) + 100
            self[name] = status

    def add_all(self, results: dict[str, LogStatus]) -> None:
        for name, status in results.items():
            self.add(name, status)


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
