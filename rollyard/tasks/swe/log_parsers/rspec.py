"""RSpec's documentation format and JSON, both with full descriptions: the groups and the example, with spaces between.

In the documentation format a passed example is a line like any other, so whatever a test prints looks like one.
"""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.json_documents import documents, objects, text
from rollyard.tasks.swe.log_parsers.status import MAX_LINE, LogStatus, Results, lines

_MARK = re.compile(r" \((FAILED - \d+|PENDING: [^()]*)\)$")
_LISTED = re.compile(r"rspec \S+ # (.+)")
_JSON = {"passed": LogStatus.PASSED, "failed": LogStatus.FAILED, "pending": LogStatus.SKIPPED}
_END = ("Pending:", "Failures:", "Finished in ")


def parse(log: str) -> Results:
    found = Results()
    groups: list[tuple[int, str]] = []
    within, after_blank = True, True
    passed = ""
    for line in lines(log):
        name = line.lstrip()
        indent = len(line) - len(name)
        if listed := _LISTED.match(line):
            found.add(listed[1], LogStatus.FAILED)
        elif line.startswith(_END):
            within = False
        elif within and name and (indent or after_blank):  # a group at the top follows an empty line
            if groups and groups[-1][0] >= indent:
                found.add(passed, LogStatus.PASSED)
            while groups and groups[-1][0] >= indent:
                groups.pop()
            mark = _MARK.search(name)
            path = " ".join([*(group for _, group in groups[-1:]), name[: mark.start()] if mark else name])[-MAX_LINE:]
            if mark:
                found.add(path, LogStatus.FAILED if mark[1].startswith("FAILED") else LogStatus.SKIPPED)
            passed = path if indent and not mark else ""  # unless a deeper line follows: then it is a group
            groups.append((indent, path))
        if not within:
            found.add(passed, LogStatus.PASSED)
            passed = ""
        after_blank = not line
    found.add(passed, LogStatus.PASSED)
    return found


def parse_json(log: str) -> Results:
    found = Results()
    for document in documents(log, "examples"):
        for example in objects(document.get("examples")):
            if status := _JSON.get(text(example.get("status"))):
                found.add(text(example.get("full_description")), status)
    return found
