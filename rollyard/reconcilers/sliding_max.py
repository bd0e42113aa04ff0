"""Highest value within a window of time, so that a scaler does not follow every dip. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlidingMax:
    """Samples that may be the highest in a window. A sample is dropped when a later sample is equal or higher."""

    samples: tuple[tuple[float, int], ...] = ()
    """(Unix seconds, value), with rising times and falling values."""

    def add(self, now: float, value: int, keep_seconds: float) -> SlidingMax:
        """Add a sample, and drop samples older than `keep_seconds`."""
        kept = tuple((at, v) for at, v in self.samples if v > value and at > now - keep_seconds)
        return SlidingMax((*kept, (now, value)))

    def max_since(self, after: float, default: int) -> int:
        """Return the highest sample that is later than `after`; `default` if there is no such sample."""
        return next((value for at, value in self.samples if at > after), default)
