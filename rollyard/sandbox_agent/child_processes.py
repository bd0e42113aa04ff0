"""Child processes of the sandbox agent: processes that the agent started, and orphans that it inherits.

The sandbox agent is process 1 of its sandbox, so orphaned processes of the task become its children. Ended children
must be reaped, because zombies use up the sandbox's process limit. One thread reaps all children; no other code calls
`waitpid`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os

from rollyard.sandbox_agent.wake_flag import WakeFlag, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGSTOP, SIGTSTP = 1, 2, 3, 9, 15, 19, 20
"""Numbers on x86-64 and ARM. Importing `signal` would import `enum`, which takes 4 ms."""


IGNORED_BY_PYTHON = (13, 25)
"""SIGPIPE and SIGXFSZ. A program of the task must not start with ignored signals."""


class ChildProcess:
    """A process that the agent started. When the process ends, the file descriptor `exited` becomes readable, and `status`
    is set."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exited = os.eventfd(0)
        self.status: int | None = None
        """Exit code as in `subprocess`: negative for a signal."""

    def kill(self) -> None:
        if self.status is None:
            try:
                os.kill(self.pid, SIGKILL)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        os.close(self.exited)


class ChildProcesses:
    def __init__(self) -> None:
        self._known: dict[int, ChildProcess] = {}
        self._lock = _thread.allocate_lock()
        self._changed = WakeFlag()
        _thread.start_new_thread(self._reap, ())

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
                readable([self._changed.fileno()], None)
                self._changed.clear()
                continue
            with self._lock:
                child = self._known.pop(pid, None)
            if child is not None:
                child.status = os.waitstatus_to_exitcode(status)
                os.eventfd_write(child.exited, 1)


def fork_and_execute(
    argv: list[str], env: Mapping[str, str], file_actions: Sequence[tuple[Any, ...]], setsigdef: Sequence[int] = ()
) -> int:
    """Do as `os.posix_spawn` with `setsid`, but by a fork.

    `os.posix_spawn` waits until the new process executes the program, and all threads of this process wait with it. It takes
    less time, but a process of the task can stop the new process before.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for kind, fd, *others in file_actions:
            if kind == os.POSIX_SPAWN_OPEN:
                os.dup2(os.open(*others), fd)
            else:
                os.dup2(fd, others[0])
                os.set_inheritable(others[0], True)  # dup2 changes nothing if both are the same
        for number in setsigdef:
            _signal.signal(number, _signal.SIG_DFL)
        os.execve(argv[0], argv, env)
    finally:
        os._exit(127)


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
