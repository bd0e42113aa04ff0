"""The verdict of a test runner on one test, and the verdicts of a whole log."""

from __future__ import annotations

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
