"""Progress of a batch on a terminal: delivered groups, filtered share, groups in flight, time left."""

from __future__ import annotations

import sys
import time

from rollyard.kinds.batch import BatchView

LINE_SECONDS = 30.0
"""Time between two lines where stderr is not a terminal."""
SAMPLE_SECONDS = 10.0
"""A rate is shown only after this time. Before, it says more about the start than about the batch."""
SAMPLE_GROUPS = 20
"""A share is shown in per cent only for at least this many groups."""


class BatchProgress:
    """Shows one line on stderr and overwrites it at each change. Where stderr is not a terminal: writes a line at the
    beginning, every LINE_SECONDS, and at the end."""

    def __init__(self) -> None:
        self._shown = False
        self._next_line = 0.0

    def show(self, view: BatchView) -> None:
        line = progress_line(view, time.time())
        if sys.stderr.isatty():
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{line}")
        elif time.monotonic() >= self._next_line or view.status.terminal:
            self._next_line = time.monotonic() + LINE_SECONDS
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line, so that later output begins below it."""
        if self._shown:
            sys.stderr.write("\n")
            self._shown = False


def progress_line(view: BatchView, now: float) -> str:
    """Return the state of a batch in one line. `now`: Unix seconds."""
    settled = view.delivered + view.filtered.total
    share = f"{view.filtered.total} of {settled} filtered" if settled else "none filtered"
    if settled >= SAMPLE_GROUPS:
        share = f"{view.filtered.total / settled:.0%} filtered"
    of = f" of {view.target}" if view.target is not None else ""
    words = [f"{view.id}: {view.delivered}{of} groups delivered", share, f"{view.in_flight} in flight"]
    seconds = (view.ended_at or now) - view.created_at
    known = seconds >= SAMPLE_SECONDS
    if (tokens := view.delivered_tokens + view.wasted_tokens) and known:
        words.append(f"{tokens / seconds:.0f} tokens/s")
    if view.target is not None and view.delivered and known and not view.status.terminal:
        left = seconds / view.delivered * (view.target - view.delivered)
        words.append(f"about {left:.0f} s left")
    if view.status.terminal:
        words.append(f"{view.status} after {seconds:.0f} s")
    elif view.waiting:
        words.append(view.waiting)
    return ", ".join(words)
