"""JUnit XML, as pytest, Maven, Gradle, PHPUnit and many others write it, and the XML of doctest for C++.

The script prints the files into its output. Each document is read on its own, and text within a document is only text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.parsers import expat

from rollyard.tasks.swe.log_parsers.status import MAX_LINE, LogStatus, Results

_BEGIN = re.compile(rb"<\?xml|<testsuites?[\s>]|<doctest[\s>]")
_VERDICTS = {"failure": LogStatus.FAILED, "error": LogStatus.ERROR, "skipped": LogStatus.SKIPPED}
MAX_DOCUMENTS = 10_000
MAX_SECTIONS = 20
Name = Callable[[str, str], str]


class _JunitDocument:
    """Handlers of one document."""

    def __init__(self, name: Name) -> None:
        self.results = Results()
        self.ended = -1
        self._name = name
        self._depth = 0
        self._case = ""
        self._status = LogStatus.PASSED
        self._sections: list[tuple[str, LogStatus]] = []
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse

    def read(self, data: memoryview) -> int:
        """Return the position behind the document, or behind its first error; -1 if it has no end."""
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError:
            if self.ended < 0 and self._parser.ErrorByteIndex >= len(data):
                return -1
            return self.ended if self.ended >= 0 else max(1, self._parser.ErrorByteIndex)
        return self.ended

    def _refuse(self, *_: object) -> None:
        raise expat.ExpatError("entities could make a small document large")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if tag == "testcase":
            owner, test = attributes.get("classname", ""), attributes.get("name", "")
            self._case = self._name(owner[:MAX_LINE], test[:MAX_LINE])
            self._status = LogStatus.PASSED
        elif tag in _VERDICTS and self._case:
            self._status = LogStatus.XFAIL if attributes.get("type") == "pytest.xfail" else _VERDICTS[tag]
        elif tag in ("TestCase", "SubCase") and len(self._sections) < MAX_SECTIONS:
            name = attributes.get("name", "")[:MAX_LINE]
            status = LogStatus.SKIPPED if attributes.get("skipped") == "true" else LogStatus.PASSED
            self._sections.append((f"{self._sections[0][0]} > {name}" if self._sections else name, status))
        elif tag in ("Expression", "Exception") and attributes.get("success") != "true":
            self._sections = [(name, LogStatus.FAILED) for name, _ in self._sections]
        elif tag == "OverallResultsAsserts" and len(self._sections) == 1 and "test_case_success" in attributes:
            # a test that may or should fail has a verdict that is not that of its expressions
            (name, status), good = self._sections[0], attributes["test_case_success"] == "true"
            failed = LogStatus.XFAIL if good else LogStatus.FAILED
            self._sections = [(name, status if good and status is not LogStatus.FAILED else failed)]

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "testcase":
            self.results.add(self._case, self._status)
            self._case = ""
        elif tag in ("TestCase", "SubCase") and self._sections:
            self.results.add(*self._sections.pop())
        if self._depth == 0:
            self.ended = self._parser.CurrentByteIndex + len(tag.encode()) + 3


def parse(log: str, name: Name = lambda owner, test: f"{owner}.{test}" if owner else test) -> Results:
    """Return statuses by `class.test`, or as `name` joins both."""
    found = Results()
    data = log.encode(errors="replace")
    position = 0
    for _ in range(MAX_DOCUMENTS):
        begin = _BEGIN.search(data, position)
        if begin is None:
            break
        document = _JunitDocument(name)
        length = document.read(memoryview(data)[begin.start() :])
        found.add_all(document.results)
        if length < 0:  # no later document can end either
            break
        position = begin.start() + length
    return found


def pytest_name(owner: str, test: str) -> str:
    return f"{owner}::{test}"


def spaced_name(owner: str, test: str) -> str:
    return f"{owner} {test}"


def method_first_name(owner: str, test: str) -> str:
    return f"{test} ({owner})" if owner else test
