"""`python -m unittest -v`, Django's runner and nose, which write `test (class) ... ok`.

A test with a docstring has two names: the one before its docstring, and the docstring's first line, which SWE-bench's lists
have. The failures that the runner lists at its end count too. A failed subtest fails its test.
"""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_WORDS = {
    "ok": LogStatus.PASSED,
    "FAIL": LogStatus.FAILED,
    "ERROR": LogStatus.ERROR,
    "expected failure": LogStatus.XFAIL,
    "unexpected success": LogStatus.FAILED,
    "UNEXPECTED SUCCESS": LogStatus.FAILED,
    "skipped": LogStatus.SKIPPED,
    "SKIP": LogStatus.SKIPPED,
}
_VERDICT = re.compile(r"(ok|FAIL|ERROR|expected failure|unexpected success)$|(skipped|SKIP)\b", re.IGNORECASE)
_LISTED = re.compile(r"(FAIL|ERROR|UNEXPECTED SUCCESS): (.+)")
_TEST = re.compile(r"\w+ \([\w.<>]+\)")


def parse(log: str) -> Results:
    found = Results()
    described, pending = "", [""]
    for full_line in lines(log):
        line = full_line.strip()
        head, dots, tail = line.partition(" ...")
        if not _status(tail.strip()) and _status(line.rpartition(" ...")[2].strip()):  # a docstring with dots
            head, dots, tail = line.rpartition(" ...")
        if listed := _LISTED.match(line):
            _add(found, [listed[2]], _WORDS[listed[1]])
        elif dots:
            pending = [head] if _test(head) else [head, described]
            described = ""
            if status := _status(tail.strip()):
                _add(found, pending, status)
        elif status := _status(line):  # the output of the test came between its name and its verdict
            _add(found, pending, status)
        elif _TEST.fullmatch(line):
            described = line
    return found


def _status(text: str) -> LogStatus | None:
    verdict = _VERDICT.match(text)
    if verdict is None:
        return None
    word = verdict[1] or verdict[2]
    return _WORDS.get(word) or _WORDS.get(word.lower())


def _add(found: Results, names: list[str], status: LogStatus) -> None:
    for name in names:
        found.add(name, status)
        found.add(_test(name), status)


def _test(name: str) -> str:
    """Return `test (class)`, without the parameters of a subtest after it and other output before it, or nothing."""
    if match := _TEST.match(name):
        return match[0]
    before, _, owner = name.rpartition(" (")
    word = before.rpartition(" ")[2].rpartition(".")[2]
    return f"{word} ({owner}" if _TEST.fullmatch(f"{word} ({owner}") else ""
