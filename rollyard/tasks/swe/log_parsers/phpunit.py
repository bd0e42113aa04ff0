"""PHPUnit's `--testdox`, with names as `class > test`."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_CLASS = re.compile(r"(\w[^()]*) \([^()]+\)$")
_PLAIN_CLASS = re.compile(r"[A-Z]\w*(?: \w+)*$")
_SYMBOLS = {
    "✔": LogStatus.PASSED,
    "⚠": LogStatus.PASSED,
    "✘": LogStatus.FAILED,
    "↩": LogStatus.SKIPPED,
    "∅": LogStatus.SKIPPED,
}
_TIME = re.compile(r" \[[\d.]+ m?s\]$")


def parse(log: str) -> Results:
    found = Results()
    owner = ""
    for line in lines(log):
        text = line.lstrip()
        if match := _CLASS.match(line):
            owner = match[1]
        elif _PLAIN_CLASS.match(line):  # a class without a namespace
            owner = line
        elif text and (status := _SYMBOLS.get(text[0])):
            name = _TIME.sub("", text[1:].strip())
            found.add(f"{owner} > {name}" if owner else name, status)
    return found
