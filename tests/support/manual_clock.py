"""A clock that tests turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    """Clock that stands still until a test advances it."""

    now: float = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds
