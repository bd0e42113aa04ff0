"""How long a step may run: as long as the job that it runs in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from rollyard.core.errors import SubmitRefused
from rollyard.slurm.job_step_driver import _left


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_slurms_times_are_read_as_what_was_asked_for() -> None:
    end = datetime.fromtimestamp(time.time() + 3600, UTC)
    left = _left("7", {"JobState": "RUNNING", "EndTime": end.strftime("%Y-%m-%dT%H:%M:%S")})
    assert 3590 < left <= 3600


def test_a_job_that_does_not_run_is_refused() -> None:
    with pytest.raises(SubmitRefused, match="is gone; name a running job"):
        _left("7", {})
