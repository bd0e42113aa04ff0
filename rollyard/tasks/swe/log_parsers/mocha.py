"""Mocha's `spec` and `json` reporters, and other JavaScript runners that put a symbol before the name of a test."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.json_documents import documents, objects, text
from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_SYMBOLS = dict.fromkeys("✔✓√", LogStatus.PASSED) | dict.fromkeys("✘✖×✗✕⨯", LogStatus.FAILED)
_SKIPPED = dict.fromkeys("○◌◦⚪﹣", LogStatus.SKIPPED)
_FAILURE = re.compile(r"(?:\[W\] *)?\d+\) +(\S.*)")
_PASSING = re.compile(r"\d+ passing\b")
_TIME = re.compile(r" ?\(?\b\d+(?:\.\d+)? ?m?s\)?$", re.IGNORECASE)
_TAG = re.compile(r"\[[^\]]*\]:")
_LISTS = {"passes": LogStatus.PASSED, "failures": LogStatus.FAILED, "pending": LogStatus.SKIPPED}


def parse(log: str) -> Results:
    """Return statuses by the name of the test alone."""
    found = Results()
    summary = False
    for full_line in lines(log):
        line = full_line.strip()
        if not line:
            continue
        if status := _SYMBOLS.get(line[0]):
            found.add(_without_time(line[1:]), status)
            summary = False
        elif _PASSING.match(line):  # the failures follow once more, by their suites
            summary = True
        elif not summary and (failure := _FAILURE.match(line)):
            found.add(_without_time(failure[1]), LogStatus.FAILED)
        elif not summary and line.startswith("- "):
            found.add(_without_time(line[1:]), LogStatus.SKIPPED)
    return found


def parse_symbols(log: str) -> Results:
    """Return statuses by the text after the symbol, without a tag such as `[chromium]:`."""
    found = Results()
    for full_line in lines(log):
        line = full_line.strip()
        if line and (status := _SYMBOLS.get(line[0]) or _SKIPPED.get(line[0])):
            name = line[1:].strip()
            found.add(_without_time(name[tag.end() :] if (tag := _TAG.match(name)) else name), status)
    return found


def parse_json(log: str) -> Results:
    """Return statuses by the full title."""
    found = Results()
    for document in documents(log, "stats"):
        for key, status in _LISTS.items():
            for test in objects(document.get(key)):
                found.add(text(test.get("fullTitle")), status)
    return found


def _without_time(name: str) -> str:
    return _TIME.sub("", name.strip()).strip()
