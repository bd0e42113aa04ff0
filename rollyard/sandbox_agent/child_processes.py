"""Child processes of the sandbox agent: processes that the agent started, and orphans that it inherits.

The sandbox agent is process 1 of its sandbox, so orphaned processes of the task become its children. Ended children
must be reaped, because zombies use up the sandbox's process limit. One thread reaps all children; no other code calls
`waitpid`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class ChildProcess:
    """A process that the agent started. When the process ends, the file descriptor `exited` becomes readable, and `status`
    is set."""

    pid: int
    exited: int = field(default_factory=lambda: os.eventfd(0))
    status: int | None = None
    """Exit code as in `subprocess`: negative for a signal."""

    def close(self) -> None:
        os.close(self.exited)


class ChildProcesses:
    def __init__(self) -> None:
        self._known: dict[int, ChildProcess] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def start(self, spawn: Callable[[], int]) -> ChildProcess:
        """Start a process by calling `spawn`. The reaper does not miss the process, even if the process ends at
        once."""
        with self._lock:
            child = ChildProcess(spawn())
            self._known[child.pid] = child
        self._changed.set()
        return child

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                self._changed.wait()
                self._changed.clear()
                continue
            with self._lock:
                child = self._known.pop(pid, None)
            if child is not None:
                child.status = os.waitstatus_to_exitcode(status)
                os.eventfd_write(child.exited, 1)


def kill_family(leader: int, signal_number: int) -> bool:
    """Signal every live process in the session (setsid) of `leader`; return True if there was any."""
    found = False
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            pid = int(entry)
            if pid != os.getpid() and os.getsid(pid) == leader and not _is_dead(pid):
                os.kill(pid, signal_number)
                found = True
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            continue
    return found


def _is_dead(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b") ")[2][:1] in b"ZX"
