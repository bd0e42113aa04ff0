"""The weights of a pool as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from rollyard.cli.weights import weights_lines
from rollyard.kinds.weights import WeightsOperation, WeightsRecord, WeightsStatus

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(version: str, number: int, origin: Literal["Spec", "Update"]) -> WeightsRecord:
    return WeightsRecord(version=version, path="/p", number=number, origin=origin, since=AT)


def test_what_is_served_since_an_update_is_told_beside_it() -> None:
    one, other = record("step8", 1, "Update"), record("base", 2, "Spec")
    operation = WeightsOperation(target=one, phase="Complete", message="step8 was served", started_at=AT)
    *_, last, since = weights_lines(WeightsStatus(current=other, history=[one, other], operation=operation))
    assert last.strip() == "update to step8 complete: step8 was served"
    assert since.strip() == "since 2026-01-01 12:00:00 UTC the pool serves base"
    *_, last = weights_lines(WeightsStatus(current=one, history=[one], operation=operation))
    assert last.strip() == "update to step8 complete: step8 was served"
