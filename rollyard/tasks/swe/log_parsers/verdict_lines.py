"""Runners that write one line for each test, with one word or mark as the verdict and no other state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

P, F, S, E = LogStatus.PASSED, LogStatus.FAILED, LogStatus.SKIPPED, LogStatus.ERROR
_MILLISECONDS = re.compile(r" \(\d+ *m?s\)$")
_MINITEST_TIME = re.compile(r"[\d.]+ s$")
_TEST_UNIT = re.compile(r"(?:test: )?(.*?):[\t ]+([.EFOPN])(?::|$)")
_EXUNIT = re.compile(r"\* test (.*?) \((skipped|excluded|[\d.]+ms)\) \[L#\d+\]$")
_EXUNIT_FAILED = re.compile(r"\d+\) test (.*) \([^()]+\)$")
_EXUNIT_MODULE = re.compile(r"\S+ \[\S.*\]$")
_EXUNIT_INVALID = re.compile(r"\d+\) \S+: failure on setup_all callback")
_ANT_MARKED = re.compile(r"\[(PASS|FAIL|ERR)\] +(\S.*)")
_ANT_ENDED = re.compile(r"Testcase: (\S.*) took [\d.,]+ sec$")
_ANT_BRIEF = re.compile(r"Testcase: (\S.*\)):\s*(?=FAILED|Caused an ERROR|SKIPPED)")
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
micropython = first_word_parser(r"(pass|FAIL|skip|lrge) +(\S+)", {"pass": P, "FAIL": F, "skip": S, "lrge": S})
bracketed = first_word_parser(r"\[(PASSED|FAILED|SKIPPED)\] (.+)", {"PASSED": P, "FAILED": F, "SKIPPED": S})
dotnet = first_word_parser(
    r"(Passed|Failed|Skipped) (\S.*?)(?: \[[^\[\]]*\])?$", {"Passed": P, "Failed": F, "Skipped": S}
)


def ant(log: str) -> Results:
    """Return statuses by `test(suite)`, of the formatters plain and brief, and by what stands behind the marks of other
    formatters. What the tests print does not count: plain and brief put it between two lines."""
    marks = {"PASS": P, "FAIL": F, "ERR": F}
    found, suite, case, status, printed = Results(), "", "", P, False
    for line in lines(log):
        task, _, text = line.strip().partition("]")
        text = text.strip()
        if task != "[junit":
            continue
        verdict = (
            F if text == "FAILED" else E if text == "Caused an ERROR" else S if text.startswith("SKIPPED") else None
        )
        if text.startswith("-------------"):
            printed = text.startswith("------------- Standard")
        elif printed:
            continue
        elif case and verdict:
            status = verdict
        elif match := _ANT_ENDED.match(text):
            found.add(case, status)
            case, status = f"{match[1]}({suite})", P
        elif match := _ANT_BRIEF.match(text):
            rest = text[match.end() :]
            found.add(match[1], F if rest == "FAILED" else S if rest.startswith("SKIPPED") else E)
        elif text.startswith("Testsuite: "):
            found.add(case, status)
            suite, case, status = text.removeprefix("Testsuite: "), "", P
        elif match := _ANT_MARKED.match(text):
            found.add(match[2], marks[match[1]])
    found.add(case, status)
    return found


def redis(log: str) -> Results:
    """Return statuses by the test's name; the file that a failure adds is cut, and the tag for which a test was left out."""
    words = {"[ok]": P, "[err]": F, "[exception]": E, "[skip]": S, "[ignore]": S}
    found = Results()
    for line in lines(log):
        word, _, name = line.strip().partition(": ")
        if status := words.get(word):
            name = name.rpartition(" in ")[0] or name if status in (F, E) else name
            found.add(_MILLISECONDS.sub("", name.partition(": Tag: ")[0] if status is S else name), status)
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
    """Return statuses by the test's name, of Elixir's `mix test --trace`. Only the line at the end of a test has a verdict.
    If `setup_all` fails, the tests of the module have lines as if they had passed."""
    found, module = Results(), list[str]()
    for line in lines(log):
        text = line.strip()
        if match := _EXUNIT.match(text):
            found.add(match[1], S if match[2] in ("skipped", "excluded") else P)
            module.append(match[1])
        elif match := _EXUNIT_FAILED.match(text):
            found.add(match[1], F)
        elif _EXUNIT_INVALID.match(text):
            for name in module:
                found.add(name, E)
        elif _EXUNIT_MODULE.match(line):
            module.clear()
    return found
