"""Vitest's `--reporter=verbose`, with names as `file > suite > test`.

The blocks of output that Vitest shows (`stdout | file > test`) do not count, up to their first empty line.
"""

from __future__ import annotations

import re

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_SYMBOLS = {"✓": LogStatus.PASSED, "×": LogStatus.FAILED, "↓": LogStatus.SKIPPED}
_TIME = re.compile(r" (?:\d+ ?m?s?|\[skipped\])$")


def parse(log: str) -> Results:
    found = Results()
    output = False
    for full_line in lines(log):
        line = full_line.strip()
        if not line or line.startswith(("stdout | ", "stderr | ")):
            output = bool(line)
        elif not output and (status := _SYMBOLS.get(line[0])):
            found.add(_TIME.sub("", line[1:].strip()), status)
    return found
