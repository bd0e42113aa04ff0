"""Conditions of an allocation, row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.kinds.base import Reason
from rollyard.reconcilers.allocation_conditions import AllocationView, allocation_conditions, why_left
from rollyard.reconcilers.missing_jobs import Absence, KnownJob
from tests.support import make

NOW = 1_700_000_000.0
Told = tuple[str, str, str]
JOB = {"jobId": "7", "node": "n1"}


def before(type: str, status: str, reason: str) -> dict[str, Any]:
    since = datetime.fromtimestamp(NOW - 60, UTC)
    return {"type": type, "status": status, "reason": reason, "message": "before", "lastTransitionTime": since}


def conditions(drain: bool = False, **change: Any) -> dict[str, Told]:
    given = {"ended": "", "engine": None, "why_drained": None, "absence": None} | {
        name: change.pop(name) for name in ("ended", "engine", "why_drained", "absence") if name in change
    }
    allocation = make.allocation(spec={"drain": drain}, **change)
    found = allocation_conditions(AllocationView(allocation, allocation.status, now=NOW, **given))
    return {c.type: (c.status, c.reason, c.message) for c in found}


def missing(lookups: int) -> Absence:
    return Absence(KnownJob("7"), NOW - 30, lookups)


@pytest.mark.parametrize(
    ("change", "type", "expected"),
    [
        ({}, "Ready", ("False", "Pending", "job (not submitted)")),
        (
            {"jobId": "7", "jobState": "PENDING", "reason": "Priority"},
            "Ready",
            ("False", "Pending", "job 7 PENDING Priority"),
        ),
        ({**JOB, "jobState": "RUNNING"}, "Ready", ("False", "Starting", "job 7 has not connected yet")),
        (
            {**JOB, "jobState": "RUNNING", "engine": Reason("OutOfMemory", "why")},
            "Ready",
            ("False", "Starting", "OutOfMemory: why"),
        ),
        ({**JOB, "jobState": "RUNNING", "ready": True}, "Ready", ("True", "Serving", "job 7 on n1")),
        (
            {**JOB, "jobState": "FAILED", "ended": "exit code 3"},
            "Ready",
            ("False", "Ended", "job 7 ended FAILED: exit code 3"),
        ),
        ({"jobState": "FAILED", "ended": "why"}, "Ready", ("False", "Ended", "why")),
        ({**JOB, "jobState": "RUNNING"}, "Submitted", None),
        (
            {**JOB, "jobState": "RUNNING", "conditions": [before("Submitted", "Unknown", "AnswerLost")]},
            "Submitted",
            ("True", "Submitted", "as job 7"),
        ),
        ({**JOB, "jobState": "RUNNING"}, "InQueue", None),
        ({**JOB, "jobState": "RUNNING", "absence": missing(1)}, "InQueue", ("True", "Listed", "")),
        (
            {**JOB, "jobState": "RUNNING", "absence": missing(9)},
            "InQueue",
            ("False", "Missing", "job 7 is missing from squeue; a second look-up will confirm that"),
        ),
        (
            {**JOB, "jobState": "RUNNING", "conditions": [before("InQueue", "False", "Missing")]},
            "InQueue",
            ("True", "Listed", ""),
        ),
        ({**JOB, "jobState": "FAILED", "absence": missing(9)}, "InQueue", None),
        (
            {"drain": True, "why_drained": Reason("GivenBack", "given back")},
            "Draining",
            ("True", "GivenBack", "given back; it accepts no new work and ends after its present work"),
        ),
        (
            {"drain": True, "conditions": [before("Draining", "True", "Replaced")]},
            "Draining",
            ("True", "Replaced", "before"),
        ),
    ],
)
def test_every_condition(change: dict[str, Any], type: str, expected: Told | None) -> None:
    assert conditions(**change).get(type) == expected


def test_the_text_about_an_end_is_written_once() -> None:
    ended = before("Ready", "False", "Ended")
    found = conditions(**JOB, jobState="FAILED", conditions=[ended], ended="another text", absence=missing(9))
    assert found == {"Ready": ("False", "Ended", "before")}


def test_our_reason_for_an_end_is_read_from_the_conditions() -> None:
    drained = before("Draining", "True", "GivenBack")
    drained["message"] = "given back: why; it accepts no new work and ends after its present work"
    late = before("Ending", "True", "DrainTimedOut")
    told = {name: make.allocation(conditions=found).status for name, found in {
        "none": [], "drained": [drained], "late": [drained, late],
    }.items()}  # fmt: skip
    assert {name: why_left(status) for name, status in told.items()} == {
        "none": "", "drained": "given back: why", "late": "before",
    }  # fmt: skip
