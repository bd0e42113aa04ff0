"""A moment that files' times are compared with."""

from __future__ import annotations

import time

_CLOCK_REALTIME_COARSE = 5
"""Clock that file systems take times from (clock_gettime(2)). Python has no name for it."""


class ClockMark:
    """A moment by the clock of file systems. Files that change later have the same or a later time."""

    def __init__(self) -> None:
        self._mark = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        self._offset = _clock_offset()

    def ns(self) -> int:
        """Return the moment; an earlier one, if the machine's clock has been set back since."""
        return self._mark + min(0, _clock_offset() - self._offset)


def _clock_offset() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
