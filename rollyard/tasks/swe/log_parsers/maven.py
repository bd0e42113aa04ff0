"""Maven's console: Surefire's line for each test or class, and runs of one test each that end with `BUILD`."""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.junit_xml import parse as parse_xml
from rollyard.tasks.swe.log_parsers.junit_xml import spaced_name
from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_PREFIX = re.compile(r"^\[(?:INFO|ERROR|WARNING)\] +")
_METHOD = re.compile(r"(\S+?)(?:\(([\w.$]+)\))?(?: +--)? +Time elapsed: [\d.]+ (?:s|sec)\b(.*)")
_SKIPPED = re.compile(r"(\S+\.\S+) skipped")
_COUNTS = re.compile(r"Tests run: *\d+, Failures: *(\d+), Errors: *(\d+), Skipped: *(\d+)(.*)")
_RUNNING = re.compile(r"Running ([\w.$]+)$")
_FAILED = re.compile(r"\[ERROR\] +([\w$.]+)\.([\w$]+)(?::\d+)?\b")


def parse_methods(log: str) -> Results:
    """Return statuses by method, or by `class.method` where Surefire writes the class; for `-Dsurefire.reportFormat=plain`."""
    found = Results()
    for line in lines(log):
        text = _PREFIX.sub("", line)
        if skipped := _SKIPPED.fullmatch(text):
            found.add(skipped[1], LogStatus.SKIPPED)
        match = _METHOD.match(text)
        if match and not match[1].startswith("Tests"):
            end = match[3]
            status = (
                LogStatus.ERROR if "<<< ERROR!" in end else LogStatus.FAILED if "<<< FAIL" in end else LogStatus.PASSED
            )
            found.add(f"{match[2]}.{match[1]}" if match[2] else match[1], status)
    return found


def parse_classes(log: str) -> Results:
    """Return statuses by class, and FAILED by `class.method`; JUnit XML and single runs count too."""
    found = Results()
    running = ""
    for line in lines(log):
        text = _PREFIX.sub("", line)
        if match := _RUNNING.match(text):
            running = match[1]
        elif match := _COUNTS.match(text):
            failures, errors, skipped = (int(match[i][:9]) for i in (1, 2, 3))
            status = LogStatus.FAILED if failures or errors else LogStatus.SKIPPED if skipped else LogStatus.PASSED
            _, named, owner = match[4].rpartition(" in ")
            found.add(owner.rstrip(".:;") if named else running, status)
            running = ""
        elif match := _FAILED.match(line):
            found.add(f"{match[1]}.{match[2]}", LogStatus.FAILED)
            found.add(match[1], LogStatus.FAILED)
    found.add_all(parse_xml(log, spaced_name))
    found.add_all(parse_runs(log))
    return found


def parse_runs(log: str) -> Results:
    """Return statuses by the argument of `-Dtest=`, for scripts that run one test at a time under `set -x`.

    The n-th `BUILD` belongs to the n-th command, because both may be shown late.
    """
    names: list[str] = []
    verdicts: list[LogStatus] = []
    for line in lines(log):
        _, option, rest = line.rpartition("-Dtest=")
        if option and rest and not rest[0].isspace():
            names.append(rest.split(maxsplit=1)[0])
        elif line.endswith("BUILD SUCCESS"):
            verdicts.append(LogStatus.PASSED)
        elif line.endswith("BUILD FAILURE"):
            verdicts.append(LogStatus.FAILED)
    found = Results()
    for name, verdict in zip(names, verdicts, strict=False):
        found.add(name, verdict)
    return found
