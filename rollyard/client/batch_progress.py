"""Progress of a batch on a terminal: informative groups, filtered share, groups in flight, time left."""

from __future__ import annotations

import sys
import time

from rollyard.kinds.batch import BatchView


class BatchProgress:
    """Shows one line on stderr and overwrites it at each change. Shows nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, view: BatchView) -> None:
        if sys.stderr.isatty():
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{progress_line(view, time.time())}")
            sys.stderr.flush()

    def close(self) -> None:
        """End the line, so that later output begins below it."""
        if self._shown:
            sys.stderr.write("\n")
            self._shown = False


def progress_line(view: BatchView, now: float) -> str:
    """Return the state of a batch in one line. `now`: Unix seconds."""
    settled = view.delivered + view.filtered.total
    share = f"{view.filtered.total / settled:.0%} filtered" if settled else "none filtered"
    of = f" of {view.target}" if view.target is not None else ""
    words = [f"{view.id}: {view.delivered}{of} informative groups", share, f"{view.in_flight} in flight"]
    seconds = (view.ended_at or now) - view.created_at
    if tokens := view.delivered_tokens + view.wasted_tokens:
        words.append(f"{tokens / max(seconds, 1e-3):.0f} tokens/s")
    if view.target is not None and view.delivered and not view.status.terminal:
        left = seconds / view.delivered * (view.target - view.delivered)
        words.append(f"about {left:.0f} s left")
    if view.status.terminal:
        words.append(f"{view.status} after {seconds:.0f} s")
    elif view.waiting:
        words.append(view.waiting)
    return ", ".join(words)
