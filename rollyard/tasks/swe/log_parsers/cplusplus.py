"""CTest and GoogleTest."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_CTEST = re.compile(r" *\d+/\d+ +Test +#\d+: +(\S.*)")
_CTEST_VERDICT = re.compile(r"(?:\*\*\*|   )(Passed|Failed|Skipped|Timeout|Not Run \(Disabled\)|Not Run|Exception)")
_CTEST_WORDS = {"Passed": LogStatus.PASSED, "Skipped": LogStatus.SKIPPED, "Not Run (Disabled)": LogStatus.SKIPPED}
_GTEST = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S.*)")
_GTEST_WORDS = {"OK": LogStatus.PASSED, "FAILED": LogStatus.FAILED, "SKIPPED": LogStatus.SKIPPED}
_GTEST_END = re.compile(r" \(\d+ ms\)$")


def parse_ctest(log: str) -> Results:
    found = Results()
    for line in lines(log):
        if (match := _CTEST.match(line)) and (verdict := _CTEST_VERDICT.search(match[1])):
            found.add(match[1][: verdict.start()].rstrip(". "), _CTEST_WORDS.get(verdict[1], LogStatus.FAILED))
    return found


def parse_gtest(log: str) -> Results:
    """Return statuses by `suite.test`. A pass counts only if the test was seen to start."""
    found = Results()
    started: set[str] = set()
    for line in lines(log):
        match = _GTEST.match(line[line.find("[ ") :]) if "[ " in line else None  # output may stand before it
        if match is None:
            continue
        name = _GTEST_END.sub("", match[2]).partition(", where ")[0]
        if match[1] == "RUN":
            started.add(name)
        elif " " not in name and (match[1] != "OK" or name in started):
            found.add(name, _GTEST_WORDS[match[1]])
    return found
