"""Child processes of the sandbox agent: processes that it started, and orphans that it inherits.

The sandbox agent is process 1 of its sandbox, so orphaned processes of the task become its children. Ended children
must be reaped, because zombies use up the sandbox's process limit. One thread reaps all children; no other code calls
`waitpid`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os

from rollyard.sandbox_agent.wake_flag import WakeFlag, readable
from rollyard.sandbox_agent.way_in import keep_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from rollyard.sandbox_agent.own_threads import OwnThreads

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGCONT, SIGSTOP, SIGTSTP = 1, 2, 3, 9, 15, 18, 19, 20
"""Numbers on x86-64 and ARM. Importing `signal` would import `enum`, which takes 4 ms."""


IGNORED_BY_PYTHON = (13, 25)
"""SIGPIPE and SIGXFSZ. A program of the task must not start with ignored signals."""


class ChildProcess:
    """A process that the sandbox agent started. When the process ends, the file descriptor `exited` becomes readable, and
    `status` is set."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exited = os.eventfd(0)
        self.resumes = False
        """True: if the process is stopped, as by `kill -STOP $$`, it goes on at once."""
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
    def __init__(self, threads: OwnThreads) -> None:
        self._known: dict[int, ChildProcess] = {}
        self._lock = _thread.allocate_lock()
        self._changed = WakeFlag()
        threads.start(self._reap)

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
                pid, status = os.waitpid(-1, os.WUNTRACED)
            except ChildProcessError:
                readable([self._changed.fileno()], None)
                self._changed.clear()
                continue
            with self._lock:
                child = self._known.get(pid) if os.WIFSTOPPED(status) else self._known.pop(pid, None)
            if os.WIFSTOPPED(status):
                if child is not None and child.resumes:
                    os.kill(pid, SIGCONT)  # the number is not taken yet: only this thread reaps
            elif child is not None:
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


class GroupMember:
    """A process at a moment. Its number may belong to another process later; number and start time together do not."""

    def __init__(self, pid: int, started: bytes) -> None:
        self.pid = pid
        self._started = started

    def kill(self) -> None:
        try:
            if _stat(self.pid)[_STARTED] == self._started:
                os.kill(self.pid, SIGKILL)
        except OSError:
            pass


def group_and_descendants(group: int, leader: int) -> list[GroupMember]:
    """Return the processes of a process group and all their descendants, in other groups and sessions too. Left out is
    `leader`, and what only the leader is an ancestor of."""
    children: dict[int, list[int]] = {}
    stats: dict[int, list[bytes]] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            stats[pid] = _stat(pid)
        except OSError:
            continue
        children.setdefault(int(stats[pid][_PARENT]), []).append(pid)
    waiting = [pid for pid, stat in stats.items() if int(stat[_GROUP]) == group]
    found: dict[int, GroupMember] = {}
    while waiting:
        pid = waiting.pop()
        if pid not in (leader, os.getpid()) and pid not in found:
            found[pid] = GroupMember(pid, stats[pid][_STARTED])
            waiting += children.get(pid, [])
    return list(found.values())


_STATE, _PARENT, _GROUP, _STARTED = 0, 1, 2, 19
"""Places of a process's values in its `stat`, after the name (proc(5))."""


def _stat(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b") ")[2].split()


def ignores(pid: int, signal_number: int) -> bool:
    """Return whether the process ignores the signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            mask = status.read().partition(b"\nSigIgn:")[2].split(None, 1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(mask, 16) >> (signal_number - 1) & 1)


def kill_family(leader: int, signal_number: int) -> bool:
    """Signal every live process in the session (setsid) of `leader`; return True if there was any."""
    found = False
    keep_open()
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
    return _stat(pid)[_STATE] in (b"Z", b"X")
