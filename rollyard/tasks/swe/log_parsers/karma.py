"""Karma's reporters mocha and spec, with names as `suite > inner suite > test`, from the browser's start to `SUMMARY:`.

As in SWE-bench, the mocha reporter's skipped tests have ` (skipped)` in their names; the spec reporter's have no status."""

from __future__ import annotations

from rollyard.tasks.swe.log_parsers.status import MAX_LINE, LogStatus, Results, lines

_SYMBOLS = {
    "✔": LogStatus.PASSED,
    "✖": LogStatus.FAILED,
    "✓": LogStatus.PASSED,
    "✗": LogStatus.FAILED,
    "ℹ": LogStatus.SKIPPED,
}


def parse(log: str) -> Results:
    found = Results()
    started = False
    suites: list[tuple[int, str]] = []
    for line in lines(log):
        text = line.lstrip()
        indent = len(line) - len(text)
        if "Starting browser" in line:
            started, suites = True, []
        elif line.startswith("SUMMARY:"):
            started = False
        elif started and text and indent and not line.startswith("\t"):  # why a test failed
            while suites and suites[-1][0] >= indent:
                suites.pop()
            path = f"{suites[-1][1]} > " if suites else ""
            if status := _SYMBOLS.get(text[0]):
                found.add(path + text[1:].strip(), status)
            else:
                suites.append((indent, f"{path}{text}"[-MAX_LINE:]))
    return found
