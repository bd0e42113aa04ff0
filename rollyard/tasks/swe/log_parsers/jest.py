"""Jest: `--verbose` with names of tests alone or with their suites, the files' own lines, and `--json`, which Vitest has too.

A verdict on a test counts between the line of its file (`PASS file`, `FAIL file`) and the first message, console block or total
after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollyard.tasks.swe.log_parsers.json_documents import documents, objects, text, texts
from rollyard.tasks.swe.log_parsers.status import MAX_LINE, LogStatus, Results, lines

_SYMBOLS = {"✓": LogStatus.PASSED, "✕": LogStatus.FAILED, "○": LogStatus.SKIPPED, "✎": LogStatus.SKIPPED}
_FILE = re.compile(r"(PASS|FAIL) +(\S.*)")
_END = ("●", "console.", "Test Suites:", "Tests:")
_TIME = re.compile(r" \([\d.]+ ?m?s\)$")
_JSON = {
    "passed": LogStatus.PASSED,
    "failed": LogStatus.FAILED,
    "pending": LogStatus.SKIPPED,
    "skipped": LogStatus.SKIPPED,
    "todo": LogStatus.SKIPPED,
    "disabled": LogStatus.SKIPPED,
}


def parse(log: str) -> Results:
    """Return statuses by the name of the test alone."""
    found = Results()
    for _, name, status in _tests(log):
        found.add(name, status)
    return found


def parse_suites(log: str) -> Results:
    """Return statuses by `suite - inner suite - test`."""
    found = Results()
    for suites, name, status in _tests(log):
        found.add(f"{suites} - {name}" if suites else name, status)
    return found


def _tests(log: str) -> Iterator[tuple[str, str, LogStatus]]:
    """Yield the path of suites, the test's name and its status."""
    suites: list[tuple[int, str]] = []
    within = False
    for line in lines(log):
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        if _FILE.match(stripped):
            suites, within = [], True
        elif stripped.startswith(_END):
            within = False
        elif within and stripped and indent:
            while suites and suites[-1][0] >= indent:
                suites.pop()
            if status := _SYMBOLS.get(stripped[0]):
                name = _TIME.sub("", stripped[1:].strip())
                name = name.removeprefix("skipped ") if stripped[0] == "○" else name
                yield suites[-1][1] if suites else "", name.removeprefix("todo "), status
            else:
                suites.append((indent, f"{suites[-1][1]} - {stripped}"[-MAX_LINE:] if suites else stripped))


def parse_files(log: str) -> Results:
    """Return statuses by the file of the tests."""
    found = Results()
    for line in lines(log):
        if match := _FILE.match(line.lstrip()):
            found.add(_TIME.sub("", match[2]), LogStatus.PASSED if match[1] == "PASS" else LogStatus.FAILED)
    return found


def parse_json(log: str) -> Results:
    """Return statuses by `suite > inner suite > test`."""
    found = Results()
    for document in documents(log, "numTotalTests"):
        for file in objects(document.get("testResults")):
            for test in objects(file.get("assertionResults")):
                if status := _JSON.get(text(test.get("status"))):
                    name = " > ".join([*texts(test.get("ancestorTitles")), text(test.get("title"))])
                    found.add(name, status)
    return found
