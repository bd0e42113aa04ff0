"""Rollouts a minute."""

from __future__ import annotations

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status
from rollyard.server.rollouts.completion_rate import CompletionRate
from tests.support.manual_clock import ManualClock

POOL = PoolKey("default", "swe")


def test_what_ended_within_the_last_minute_counts() -> None:
    clock = ManualClock()
    pace = CompletionRate(clock)
    pace.count(POOL, Status.COMPLETED)
    assert pace.per_minute(POOL) is None, "it has only just begun to count"
    clock.turn(30)
    pace.count(POOL, Status.COMPLETED)
    pace.count(POOL, Status.FAILED)
    assert pace.per_minute(POOL) == {Status.COMPLETED: 4, Status.FAILED: 2}, "of half a minute so far"
    clock.turn(44)
    assert pace.per_minute(POOL) == {Status.COMPLETED: 60 / 59, Status.FAILED: 60 / 59}
    clock.turn(60)
    assert pace.per_minute(POOL) == {}
    assert pace.per_minute(PoolKey("other", "swe")) == {}


def test_many_endings_take_little_room() -> None:
    clock = ManualClock()
    pace = CompletionRate(clock)
    for _ in range(1000):
        pace.count(POOL, Status.COMPLETED)
        clock.turn(0.25)
    assert pace.per_minute(POOL) == {Status.COMPLETED: 240}
    assert len(pace._counts[POOL][Status.COMPLETED].seconds) <= 61
