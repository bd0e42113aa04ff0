"""pytest in images of R2E. Their maps of expected statuses name a test without its file, cut the name at ` - `, and leave out
what was skipped or marked with xfail."""

from __future__ import annotations

from rollyard.tasks.swe.log_parsers import pytest
from rollyard.tasks.swe.log_parsers.status import LogStatus, Results

_JUDGED = (LogStatus.PASSED, LogStatus.FAILED, LogStatus.ERROR)


def parse(log: str, separator: str = "::") -> Results:
    """Return statuses by the part of a node id behind the file, as `TestSums::test_total`."""

    def name(node: str) -> str:
        return node.partition("::")[2].replace("::", separator).partition(" - ")[0]

    found = pytest.parse(log.replace("\nXPASS ", "\n#XPASS "), name)
    return Results({name: status for name, status in found.items() if status in _JUDGED})
