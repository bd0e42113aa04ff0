"""Usage: what jobs held while they ran, and what their pools' rollouts came to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest

from rollyard.kinds.base import evolve
from rollyard.kinds.usage import JobTime, job_times
from rollyard.server.usage import usage, week_of
from rollyard.store.usage_hours import HOUR, UsageHour
from tests.store.record import ENDED
from tests.support.make import allocation

MONDAY = datetime(2026, 11, 30, tzinfo=UTC).timestamp()


def job(start: float, end: float, pool: str = "policy", gpus: int = 2, namespace: str = "a") -> JobTime:
    kind: Literal["InferencePool", "RolloutPool"] = "InferencePool" if gpus else "RolloutPool"
    return JobTime("7", f"{pool}-0", namespace, kind, pool, start, start, end, False, gpus, 4)


def test_a_job_counts_from_its_start_to_its_end_and_only_within_the_time() -> None:
    jobs = [job(MONDAY - 2 * HOUR, MONDAY + HOUR), job(MONDAY + HOUR, MONDAY + 9 * HOUR), job(0.0, MONDAY - HOUR)]
    found = usage(jobs, [], "pool", MONDAY, MONDAY + 2 * HOUR)
    (row,) = found.rows
    assert (row.namespace, row.pool, row.gpu_hours, row.cpu_hours) == ("a", "policy", 4.0, 8.0)
    assert found.total.gpu_hours == 4.0


def test_a_job_over_midnight_of_sunday_counts_in_both_weeks() -> None:
    hours = [UsageHour(int(MONDAY // HOUR) - 1, "a", "swe", 3, 2, 50, 7)]
    found = usage([job(MONDAY - 3 * HOUR, MONDAY + HOUR)], hours, "week", MONDAY - 9 * HOUR, MONDAY + 9 * HOUR)
    assert [(row.week, row.gpu_hours, row.scored) for row in found.rows] == [("2026-W48", 6.0, 2), ("2026-W49", 2.0, 0)]
    assert found.rows[0].scored_per_gpu_hour == pytest.approx(2 / 6)
    assert week_of(datetime(2027, 1, 1, tzinfo=UTC).timestamp()) == "2026-W53"


def test_rollouts_are_counted_by_pool_and_namespace_and_a_rate_needs_gpus() -> None:
    hour = int(MONDAY // HOUR)
    hours = [
        UsageHour(hour, "a", "swe", 3, 2, 50, 7),
        UsageHour(hour, "b", "swe", 1, 1, 5, 1),
        UsageHour(hour - 1, "a", "swe", 9, 9, 9, 9),
    ]
    jobs = [job(MONDAY, MONDAY + HOUR), job(MONDAY, MONDAY + HOUR, "swe", 0)]
    found = usage(jobs, hours, "pool", MONDAY, MONDAY + HOUR)
    assert [(row.namespace, row.pool, row.scored, row.scored_per_gpu_hour) for row in found.rows] == [
        ("a", "policy", 0, 0.0),
        ("a", "swe", 2, None),
        ("b", "swe", 1, None),
    ]
    by_space = usage(jobs, hours, "namespace", MONDAY, MONDAY + HOUR).rows
    assert [(row.namespace, row.rollouts, row.scored_per_gpu_hour) for row in by_space] == [
        ("a", 3, 1.0),
        ("b", 1, None),
    ]
    assert found.total.scored_per_cpu_hour == pytest.approx(3 / 8)
    assert (found.total.prompt_tokens, found.total.sampled_tokens, found.total.cpu_hours) == (55, 8, 8.0)


def test_a_job_that_never_started_counts_nothing_and_one_that_is_both_ended_and_there_counts_once() -> None:
    start = datetime.fromtimestamp(MONDAY, UTC)
    runs = allocation("swe-1", uid="1", job_state="RUNNING", node="n1", start_time=start)
    waits = allocation("swe-2", uid="2", job_state="PENDING", node="", start_time=start)
    both = allocation("swe-3", uid="3", job_state="RUNNING", node="n1", start_time=start)
    over = evolve(ENDED, uid="3", started_at=MONDAY, ended_at=MONDAY + 60)
    never = evolve(ENDED, uid="4", started_at=None)
    found = list(job_times([over, never], [runs, waits, both], MONDAY + 100))
    assert [(one.start, one.end, one.gpus) for one in found] == [(MONDAY, MONDAY + 60, 1), (MONDAY, MONDAY + 100, 0)]
