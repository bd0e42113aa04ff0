"""`cargo test`, and `cargo nextest run`.

A verdict of libtest counts between `running N tests` and the next `failures:` or `test result:`; the output of tests, which
libtest holds back, comes after it.
"""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_START = re.compile(r"running \d+ tests?$")
_MODE = re.compile(r" - (?:should panic|compile fail|compile)$")
_NEXTEST = re.compile(
    r" *(?:TRY \d+ )?(PASS|FAIL|LEAK|TIMEOUT|TMT|ABORT|ABRT|SEGV|SKIP|SIG[A-Z]+) \[ *>?[\d.]*s?\] +"
    r"(?:\( *\d+/\d+\) +)?([^\s(].*)"
)
"""A verdict. With `--retries`, a try that is not the test's last one has `(───)` for its number."""


def parse(log: str) -> Results:
    found = Results()
    running, pending = False, ""
    for line in lines(log):
        if _START.match(line):
            running, pending = True, ""
        elif line == "failures:" or line.startswith("test result:"):
            running = False
        elif running and line.startswith("test ") and " ... " in f"{line} ":
            name, _, word = line.removeprefix("test ").partition(" ...")
            pending = "" if _add(found, name, word.strip()) else name
        elif running and pending and _add(found, pending, line):  # --nocapture: the test's output came first
            pending = ""
    return found


def _add(found: Results, name: str, word: str) -> bool:
    if word == "ok" or word.startswith("ok <"):
        status = LogStatus.PASSED
    elif word == "FAILED" or word.startswith("FAILED <"):
        status = LogStatus.FAILED
    elif word == "ignored" or word.startswith("ignored,"):
        status = LogStatus.SKIPPED
    else:
        return False
    found.add(name, status)
    found.add(_MODE.sub("", name), status)
    return True


def parse_nextest(log: str) -> Results:
    """Return statuses by `binary test`, as nextest writes them."""
    found = Results()
    for line in lines(log):
        if match := _NEXTEST.match(line):
            word = match[1]
            passed = word in ("PASS", "LEAK")
            found.add(
                match[2], LogStatus.PASSED if passed else LogStatus.SKIPPED if word == "SKIP" else LogStatus.FAILED
            )
    return found
