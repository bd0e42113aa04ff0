"""Freezes processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PATIENCE_SECONDS = 60.0


def freeze(pid: int) -> None:
    """Stop a process; return when each of its threads has stopped, which happens one after the other."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(state in "TtZX" for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} did not stop"
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread may end
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return states
