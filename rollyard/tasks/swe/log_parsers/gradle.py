"""Gradle's test logging, `class > test PASSED`."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_WORDS = {"PASSED": LogStatus.PASSED, "FAILED": LogStatus.FAILED, "SKIPPED": LogStatus.SKIPPED}
_TIME = re.compile(r" \([\d.]+s\)$")


def parse(log: str) -> Results:
    found = Results()
    pending = ""
    for full_line in lines(log):
        line = _TIME.sub("", full_line.strip())
        head, _, word = line.rpartition(" ")
        if " > " in head and word in _WORDS and not line.startswith(">"):
            found.add(head, _WORDS[word])
            pending = ""
        elif line in _WORDS and pending:  # a warning came between the name and its verdict
            found.add(pending, _WORDS[line])
            pending = ""
        elif " > " in line and not line.startswith(">"):
            pending = line
    return found
