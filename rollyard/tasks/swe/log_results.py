"""Statuses of a task's tests in the log of a run, found in a checker process: code under test may have printed the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollyard.tasks.scoring.checker_process import serve
from rollyard.tasks.swe.log_parsers.parser_choice import parse_log
from rollyard.tasks.swe.observed_tests import ObservedTests

CPU_SECONDS = 60
MEMORY_BYTES = 4 << 30
LETTERS = {"PASSED": "P", "XFAIL": "X", "FAILED": "F", "ERROR": "E", "SKIPPED": "S"}
ABSENT = "-"
MAX_SIMILAR, MAX_SIMILAR_CHARS = 3, 120
"""Greatest number of absent tests for which a similar name is sought, and greatest length of such a name."""
LEAST_NAME = 6
"""Shorter names are like too many others."""


def statuses(job: bytes, log: bytes) -> dict[str, Any]:
    """Return a letter for each test that the job names, the number of other tests, and names in the log that are like those of
    absent tests. `job` is JSON: `tests`, a list of names,
    and `parser`, the name of a parser; null: the log is the JSON file of a parser script."""
    asked = json.loads(job)
    text = log.decode("utf-8", "replace")
    found: Mapping[str, str] = parse_log(asked["parser"], text) if asked["parser"] else _of_script(text)
    observed = ObservedTests(found)
    letters = "".join(LETTERS.get(observed.status(name) or "", ABSENT) for name in asked["tests"])
    meant = {test for name in asked["tests"] for test in observed.meant(name)}
    absent = [test for test, letter in zip(asked["tests"], letters, strict=True) if letter == ABSENT]
    return {"letters": letters, "others": len(found) - len(meant), "similar": _similar(absent, found)}


def _similar(absent: Sequence[str], found: Iterable[str]) -> dict[str, str]:
    """Return absent test -> name in the log, for the first few tests: one of the two begins or ends with the other."""
    similar: dict[str, str] = {}
    names = [name for name in found if len(name) >= LEAST_NAME]
    for test in absent[:MAX_SIMILAR]:
        for name in names:
            longer, shorter = (name, test) if len(name) > len(test) else (test, name)
            if len(shorter) >= LEAST_NAME and (longer.startswith(shorter) or longer.endswith(shorter)):
                similar[test] = name[:MAX_SIMILAR_CHARS]
                break
    return similar


def _of_script(text: str) -> dict[str, str]:
    """Return the statuses that a parser script has written; none if it has written something else."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(tests := found.get("tests"), list):
            return {test["name"]: test["status"].upper() for test in tests}
        return {name: status.upper() for name, status in found.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}


if __name__ == "__main__":
    serve(statuses, CPU_SECONDS, MEMORY_BYTES)
