"""Highest value within a window of time, so that a scaler does not follow every dip. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlidingMax:
    """Samples that may be the highest of some window that ends now. A sample is dropped when a later one is as high."""

    samples: tuple[tuple[float, int], ...] = ()
    """(time, value), with rising times and falling values."""

    def add(self, now: float, value: int, keep_seconds: float) -> SlidingMax:
        """Add a sample, and drop those older than `keep_seconds`."""
        kept = tuple((at, v) for at, v in self.samples if v > value and at > now - keep_seconds)
        return SlidingMax((*kept, (now, value)))

    def max_since(self, after: float, default: int) -> int:
        """Highest sample taken after this time; `default` if there is none."""
        return next((value for at, value in self.samples if at > after), default)
