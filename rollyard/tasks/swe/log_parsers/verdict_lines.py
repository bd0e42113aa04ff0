"""Runners that write one line for each test, with one word or mark as the verdict and no other state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

P, F, S, E = LogStatus.PASSED, LogStatus.FAILED, LogStatus.SKIPPED, LogStatus.ERROR
_MILLISECONDS = re.compile(r" \(\d+ *m?s\)$")
_MINITEST_TIME = re.compile(r"[\d.]+ s$")
_TEST_UNIT = re.compile(r"(?:test: )?(.*?):[\t ]+([.EFOPN])(?::|$)")
_EXUNIT = re.compile(r"\* test (.*?)(?: \((skipped|excluded|[\d.]+ms)\))? \[L#\d+\]$")
_EXUNIT_FAILED = re.compile(r"\d+\) test (.*) \([^()]+\)$")
_XCTEST = re.compile(r"Test Case '([^']+)' (passed|failed|skipped) \(")
_MARKS = frozenset(".FUP-SA")


def first_word_parser(pattern: str, words: Mapping[str, LogStatus]) -> Callable[[str], Results]:
    """Return a parser of lines that begin with the verdict; `pattern` has the groups verdict and name."""
    compiled = re.compile(pattern)

    def parse(log: str) -> Results:
        found = Results()
        for line in lines(log):
            if match := compiled.match(line.strip()):
                found.add(_MILLISECONDS.sub("", match[2]), words[match[1]])
        return found

    return parse


automake = first_word_parser(
    r"(PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): (.+)",
    {"PASS": P, "FAIL": F, "SKIP": S, "XFAIL": LogStatus.XFAIL, "XPASS": F, "ERROR": E},
)
micropython = first_word_parser(r"(pass|FAIL|skip|lrge) +(\S.*)", {"pass": P, "FAIL": F, "skip": S, "lrge": S})
ant = first_word_parser(r"\[junit\] +\[(PASS|FAIL|ERR)\] +(\S.*)", {"PASS": P, "FAIL": F, "ERR": F})
bracketed = first_word_parser(r"\[(PASSED|FAILED|SKIPPED)\] (.+)", {"PASSED": P, "FAILED": F, "SKIPPED": S})
dotnet = first_word_parser(
    r"(Passed|Failed|Skipped) (\S.*?)(?: \[[^\[\]]*\])?$", {"Passed": P, "Failed": F, "Skipped": S}
)


def redis(log: str) -> Results:
    """Return statuses by the test's name; the file that a failure adds is cut."""
    words = {"[ok]": P, "[err]": F, "[exception]": E, "[skip]": S, "[ignore]": S}
    found = Results()
    for line in lines(log):
        word, _, name = line.strip().partition(": ")
        if status := words.get(word):
            name = name.rpartition(" in ")[0] or name if status in (F, E) else name
            found.add(_MILLISECONDS.sub("", name), status)
    return found


def xctest(log: str) -> Results:
    """Return statuses by the name in quotes, of Swift's XCTest."""
    words = {"passed": P, "failed": F, "skipped": S}
    found = Results()
    for line in lines(log):
        if match := _XCTEST.match(line.strip()):
            found.add(match[1], words[match[2]])
    return found


def rspec_lines(log: str) -> Results:
    """Return statuses by the text before ` - passed`."""
    words = {"passed": P, "failed": F, "pending": S}
    found = Results()
    for line in lines(log):
        name, _, word = line.rpartition(" - ")
        if word in words:
            found.add(name, words[word])
    return found


def minitest(log: str) -> Results:
    """Return statuses by `Class#test`; a name that ends with a dot counts without it too."""
    words = {".": P, "F": F, "E": E, "S": S}
    found = Results()
    for line in lines(log):
        head, _, mark = line.rpartition(" = ")
        name, _, time = head.rpartition(" = ")
        if mark in words and _MINITEST_TIME.match(time):
            found.add(name, words[mark])
            found.add(name.strip().removesuffix("."), words[mark])
    return found


def test_unit(log: str) -> Results:
    """Return statuses by the test's name alone, of Ruby's test-unit."""
    words = {".": P, "F": F, "E": E, "O": S, "P": S, "N": P}
    found = Results()
    for line in lines(log):
        if match := _TEST_UNIT.match(line.strip()):
            found.add(match[1], words[match[2]])
    return found


def cucumber(log: str) -> Results:
    """Return statuses by the text before the marks of the steps."""
    found = Results()
    for line in lines(log):
        name, _, marks = line.strip().rpartition(" ")
        if marks and _MARKS.issuperset(marks) and "." in marks:
            found.add(name, F if "F" in marks else P)
    return found


def exunit(log: str) -> Results:
    """Return statuses by the test's name, of Elixir's `mix test --trace`."""
    found = Results()
    for line in lines(log):
        if match := _EXUNIT.match(line.strip()):
            found.add(match[1], S if match[2] in ("skipped", "excluded") else P)
        elif match := _EXUNIT_FAILED.match(line.strip()):
            found.add(match[1], F)
    return found
