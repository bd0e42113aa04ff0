"""Tests of a log, found under the names that a family's lists have for them. Pure.

The lists were made from logs too, by parsers that cut names at a blank, and by runs that wrote a test's time behind its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TIME = re.compile(r"[\[(]\s{0,9}\d{1,9}(?:\.\d{1,9})?\s{0,9}(?:ms|s)\s{0,9}[\])]$", re.IGNORECASE)
"""Time that a test took, at the end of its name."""
_TIME_IN_WORDS = re.compile(r"\sin\s{1,9}\d{1,9}(?:\.\d{1,9})?\s{1,9}(?:msec|sec)\b", re.IGNORECASE)
_PASSED = frozenset({"PASSED", "XFAIL"})


class ObservedTests:
    """Statuses of the tests that a log names."""

    def __init__(self, statuses: Mapping[str, str]) -> None:
        self._statuses = statuses
        self._untimed: dict[str, list[str]] = {}
        for name in statuses:
            self._untimed.setdefault(_untimed(name), []).append(name)

    def meant(self, name: str) -> list[str]:
        """Return the tests of the log that a list calls `name`.

        Exact names come first, then names without times. A name that was cut inside its parameters, as `test[a` is, means all
        tests that begin with it.
        """
        if name in self._statuses:
            return [name]
        found = self._untimed.get(_untimed(name), [])
        if not found and name.count("[") > name.count("]"):
            return [full for full in self._statuses if full.startswith(name)]
        return found

    def status(self, name: str) -> str | None:
        """Return the status of what a list calls `name`; None if the log does not name it. Several tests under one name count
        only if all of them passed or none did; SWE-bench grades so too."""
        found = [self._statuses[full] for full in self.meant(name)]
        return found[0] if len({status in _PASSED for status in found}) == 1 else None


def _untimed(name: str) -> str:
    return _TIME_IN_WORDS.sub("", _TIME.sub("", name.strip())).strip()
