"""`go test -v`, with names of tests alone, and `go test -json`, with the package before the name.

A pass counts only if the test was seen to start.
"""

from __future__ import annotations

import json
import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_WORDS = {"PASS": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "SKIP": LogStatus.SKIPPED}
_START = re.compile(r"=== RUN   (\S+)$")
_VERDICT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \(\d[\w.]*\)$")


def parse(log: str) -> Results:
    found = Results()
    started: set[str] = set()
    for line in lines(log):
        if start := _START.search(line):
            started.add(start[1])
        elif (verdict := _VERDICT.search(line)) and (verdict[1] != "PASS" or verdict[2] in started):
            found.add(verdict[2], _WORDS[verdict[1]])
    return found


def parse_json(log: str) -> Results:
    found = Results()
    started: set[str] = set()
    for line in lines(log):
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        action, package, test = event.get("Action"), event.get("Package"), event.get("Test")
        if not (isinstance(package, str) and isinstance(test, str) and isinstance(action, str)):
            continue
        name = f"{package}.{test}"
        if action == "run":
            started.add(name)
        elif (status := _WORDS.get(action.upper())) and (status is not LogStatus.PASSED or name in started):
            found.add(name, status)
    return found
