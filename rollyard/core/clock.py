"""Clocks. Code gets the time from a clock, so that tests can set the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment. They never decrease."""


class SystemClock:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def as_datetime(unix: float) -> datetime:
    """Return a UTC datetime in whole seconds, as in objects of Kubernetes."""
    return datetime.fromtimestamp(int(unix), UTC)


def as_text(unix: float) -> str:
    """Return a text for people: `2026-11-22 11:02:03 UTC`."""
    return f"{as_datetime(unix):%Y-%m-%d %H:%M:%S} UTC"


def as_exact_datetime(unix: float) -> datetime:
    """Return a UTC datetime with fractions of a second, for times that may lie less than a second apart."""
    return datetime.fromtimestamp(unix, UTC)
