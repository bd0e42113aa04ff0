"""The processes below a process that adopts orphans.

Imports only the standard library, because small programs that start without site-packages use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAUSE_SECONDS = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, also of those with a session of their own."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. It also holds for a program that takes the process over."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, from the third field (the state) to the last. Raises OSError if the process
    has ended."""
    # The command before the state is in brackets, and may itself contain spaces and brackets.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def boot_id() -> str:
    """Return what tells one start of this machine from another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def name(pid: int) -> str:
    """Return the short name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def descendants(root: int, *, zombies: bool = False) -> list[int]:
    """Return every living process below `root`, with `zombies` also those that have ended and are not collected."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and ((fields := stat(int(entry)))[0] not in "ZX" or zombies):
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, unseen = [], [root]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def with_variable(name: str, value: str) -> list[int]:
    """Return the living processes that were started with this variable in their environment.

    Processes whose environment this user may not read are missing.
    """
    wanted, found = os.fsencode(f"{name}={value}"), []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{entry}/environ").read_bytes() if entry.isdigit() else b""
            if wanted in variables.split(b"\0") and stat(int(entry))[0] not in "ZX":
                found.append(int(entry))
    return found


def signal_all(processes: Iterable[int], *numbers: int) -> None:
    for process in processes:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def reap() -> dict[int, int]:
    """Collect every child that has ended. Return their wait statuses by pid."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def kill_below(seconds: float) -> tuple[set[str], dict[int, str]]:
    """Kill and collect every process below this one, which must adopt orphans, for `seconds` at most. Return the names
    of those that lived, and the processes that are still there, with their names.

    KILL does not end a process that waits in the kernel for a device. A process is a zombie as soon as its first thread
    has ended; its memory, also that of a GPU, is free only once it can be collected.
    """
    names: set[str] = set()
    deadline = time.monotonic() + seconds
    while True:
        left = {pid: name(pid) for pid in descendants(os.getpid())}
        names |= set(left.values())
        signal_all(left, signal.SIGKILL)
        reap()
        if not _has_children():
            return names, {}
        if time.monotonic() > deadline:
            return names, {pid: name(pid) for pid in descendants(os.getpid(), zombies=True)}
        time.sleep(_PAUSE_SECONDS)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
