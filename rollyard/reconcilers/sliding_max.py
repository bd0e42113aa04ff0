"""Highest value within a window of time; keeps a scaler from following every dip. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlidingMax:
    """Samples that may still be the highest of some window that ends now: later ones are lower."""

    samples: tuple[tuple[float, int], ...] = ()
    """(time, value), times rising, values falling."""

    def add(self, now: float, value: int, keep_seconds: float) -> SlidingMax:
        """Add a sample, and drop those older than `keep_seconds`."""
        kept = tuple((at, v) for at, v in self.samples if v > value and at > now - keep_seconds)
        return SlidingMax((*kept, (now, value)))

    def max_since(self, after: float, default: int) -> int:
        """Highest sample taken after this time; `default` when there is none."""
        return next((value for at, value in self.samples if at > after), default)
