"""Finds the tests of a task in the log of their run, in a checker process: the solution may have printed into the log. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from rollyard.tasks.scoring.checker_process import serve
from rollyard.tasks.swe.log_parsers.parser_choice import parse_log

CPU_SECONDS = 30
MEMORY_BYTES = 2 << 30
GOOD = ("PASSED", "XFAIL")
ABSENT = "did not run"
_WORD = re.compile(r"\w+")


def tests_in_log(job: bytes, log: bytes) -> dict[str, Any]:
    """Return `statuses`, one for each test of the job, and `bad`, names of tests that failed.

    `job` is JSON: `parser`, and `tests`, a list of lists: the name of a test, or the words that its name in the log has, such
    as module, class and function. A test with parameters has the worst status of all that have its words."""
    asked = json.loads(job)
    found = parse_log(asked["parser"], log.decode("utf-8", "replace"))
    words = {name: frozenset(_WORD.findall(name)) for name in found}
    statuses = []
    for test in asked["tests"]:
        own = [found[name] for name in found if name == test[0] or (len(test) > 1 and words[name].issuperset(test))]
        statuses.append(_worst([str(status) for status in own]))
    bad = [name for name, status in found.items() if str(status) not in (*GOOD, "SKIPPED")]
    return {"statuses": statuses, "bad": bad[:10]}


def _worst(statuses: Collection[str]) -> str:
    return next((status for status in statuses if status not in GOOD), next(iter(statuses), ABSENT))


if __name__ == "__main__":
    serve(tests_in_log, CPU_SECONDS, MEMORY_BYTES)
