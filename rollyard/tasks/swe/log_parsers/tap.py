"""TAP, as Mocha, QUnit, Node and many others write it.

A description that begins with a dash has two names, with and without the dash.
"""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_RESULT = re.compile(r"(ok|not ok) \d+ (\S.*)")
_DIRECTIVE = re.compile(r"# (skip|todo)\b", re.IGNORECASE)


def parse(log: str) -> Results:
    found = Results()
    for line in lines(log):
        match = _RESULT.match(line.lstrip())
        if match is None:
            continue
        status = LogStatus.PASSED if match[1] == "ok" else LogStatus.FAILED
        name = match[2]
        if directive := _DIRECTIVE.search(name):
            found.add(name, LogStatus.SKIPPED)
            name, status = name[: directive.start()], LogStatus.SKIPPED
        found.add(name, status)
        found.add(name.removeprefix("- "), status)
    return found
