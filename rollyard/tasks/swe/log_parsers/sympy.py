"""SymPy's own runner (`bin/test --verbose`), which names a test by its function, and a failed one by its file too."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_WORDS = {
    "ok": LogStatus.PASSED,
    "X": LogStatus.PASSED,
    "F": LogStatus.FAILED,
    "E": LogStatus.ERROR,
    "f": LogStatus.XFAIL,
    "s": LogStatus.SKIPPED,
    "w": LogStatus.SKIPPED,
}
_FAILURE = re.compile(r"_+ (\S*):(\w+) _+")


def parse(log: str) -> Results:
    found = Results()
    pending = ""
    for full_line in lines(log):
        line = full_line.removesuffix("[OK]").removesuffix("[FAIL]").strip()  # after the last test of a file
        first, _, word = line.partition(" ")
        if failure := _FAILURE.fullmatch(line):
            found.add(f"{failure[1]}:{failure[2]}", LogStatus.FAILED)
            found.add(failure[2], LogStatus.FAILED)
        elif first.startswith("test_") and first.isidentifier():
            if word.endswith(" s"):  # after the reason of the skip
                word = "s"
            if word in _WORDS:
                found.add(first, _WORDS[word])
            pending = first
        elif pending and line in _WORDS:  # the test printed something before its verdict
            found.add(pending, _WORDS[line])
            pending = ""
    return found
