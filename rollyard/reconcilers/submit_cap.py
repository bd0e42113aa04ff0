"""Cap of the jobs that a pool submits within a minute, whatever Slurm says about the earlier ones. Pure.

The back-off after failures needs to see the failures. If Slurm's answers hide them, or a fault of ours does, a pool would
submit without end. The cap needs no answer: it counts submits by this server's own clock.
"""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0
SIZES = 3
"""A pool may submit this many times its size within WINDOW_SECONDS: all at once, a replacement of all, and some failures."""
MIN_JOBS = 20


class SubmitCap:
    """Submits of the last WINDOW_SECONDS, by pool. They are forgotten at a restart of the server."""

    def __init__(self) -> None:
        self._submits: dict[str, deque[tuple[float, int]]] = {}

    def take(self, pool: str, jobs: int, *, size: int, now: float) -> float:
        """Count a submit of `jobs` jobs and return 0.0, or return the seconds until it is allowed. `now`: monotonic
        seconds."""
        limit, count = max(MIN_JOBS, SIZES * size), self.count(pool, now)
        recent = self._submits.setdefault(pool, deque())
        if recent and count + jobs > limit:
            return recent[0][0] + WINDOW_SECONDS - now
        recent.append((now, jobs))
        return 0.0

    def count(self, pool: str, now: float) -> int:
        """Return the number of jobs that the pool has submitted within the last WINDOW_SECONDS."""
        recent = self._submits.get(pool, deque())
        while recent and now - recent[0][0] >= WINDOW_SECONDS:
            recent.popleft()
        if not recent:
            self._submits.pop(pool, None)
        return sum(jobs for _, jobs in recent)
