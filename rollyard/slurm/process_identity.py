"""Identity of a process: pid, start time and boot. A later process with the same pid has another identity."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from rollyard.core.process_tree import boot_id, stat, with_variable


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    start: int
    """Start time in clock ticks since boot: field 22 of /proc/PID/stat."""
    boot: str

    @classmethod
    def of(cls, data: dict[str, Any]) -> ProcessIdentity:
        return cls(int(data["pid"]), int(data["start"]), str(data["boot"]))

    def alive(self) -> bool:
        """Whether this process still runs. A zombie and a later process with the same pid count as ended."""
        return boot_id() == self.boot and start_time(self.pid) == self.start

    def kill(self, signal: int) -> bool:
        """Signal the process; return False if it has ended."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal)
            return True
        return False


def start_time(pid: int) -> int | None:
    """Return the start time of a process; None if there is no such process or only a zombie."""
    try:
        fields = stat(pid)
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def processes_with_variable(name: str, value: str) -> list[ProcessIdentity]:
    """Return the processes that `with_variable` finds."""
    started = ((pid, start_time(pid)) for pid in with_variable(name, value))
    return [ProcessIdentity(pid, start, boot_id()) for pid, start in started if start is not None]
