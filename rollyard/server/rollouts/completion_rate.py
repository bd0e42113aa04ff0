"""Rollouts that ended within the last minute, by pool and status. The counts are in memory: a restart clears them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollyard.core.clock import Clock
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status

WINDOW_SECONDS = 60
LEAST_SECONDS = 5.0
"""No rate is given until the server has run for this many seconds."""


@dataclass(slots=True)
class _SecondCount:
    at: int
    ended: int = 0


@dataclass(slots=True)
class _EndCounts:
    """Numbers of ended rollouts of one pool and status: one count for each second, the oldest first."""

    seconds: deque[_SecondCount] = field(default_factory=deque)

    def add(self, now: float) -> None:
        if not self.seconds or self.seconds[-1].at != int(now):
            self.seconds.append(_SecondCount(int(now)))
        self.seconds[-1].ended += 1
        self.count(_window(now))

    def count(self, since: int) -> int:
        """Return the number of rollouts that ended from `since` on; drop older counts."""
        while self.seconds and self.seconds[0].at < since:
            self.seconds.popleft()
        return sum(second.ended for second in self.seconds)


class CompletionRate:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._counts: dict[PoolKey, dict[Status, _EndCounts]] = {}

    def count(self, pool: PoolKey, status: Status) -> None:
        self._counts.setdefault(pool, {}).setdefault(status, _EndCounts()).add(self._clock.monotonic())

    def per_minute(self, pool: PoolKey) -> Mapping[Status, float] | None:
        """Return ended rollouts per minute for each status that occurred; None during the first LEAST_SECONDS."""
        now = self._clock.monotonic()
        since = _window(now)
        seconds = now - max(since, self._began)
        if seconds < LEAST_SECONDS:
            return None
        counts = {status: line.count(since) for status, line in self._counts.get(pool, {}).items()}
        if not any(counts.values()):
            self._counts.pop(pool, None)
        return {status: 60 * count / seconds for status, count in counts.items() if count}


def _window(now: float) -> int:
    """Start of the window: a whole second, because there is one count for each second."""
    return int(now) - WINDOW_SECONDS + 1
