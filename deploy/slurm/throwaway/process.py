"""A process by pid and start time: a process with only the same pid may be another one, and is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Process:
    pid: int
    started: int
    """Clock ticks from the boot to its start, from /proc."""

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process with this pid; None when there is none, or only its exit status is left."""
        fields = _stat(pid)
        if fields is None or fields[0] in "ZX":
            _reap(pid)
            return None
        return cls(pid, int(fields[19]))

    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal to this very process; do nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def environ(self) -> dict[str, str]:
        """Return the environment with which it was started; empty when it cannot be read."""
        try:
            text = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="surrogateescape")
        except OSError:
            return {}
        return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)

    def name(self) -> str:
        """Return its program's name, up to 15 letters."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/comm").read_text().strip()
        return ""

    def holds_open(self, files: set[tuple[int, int]]) -> bool:
        """Return whether it has one of these files, by device and inode, open."""
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            for number in os.listdir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    if _identity(f"/proc/{self.pid}/fd/{number}") in files:
                        return True
        return False

    def root(self) -> str:
        """Return its root folder as this process sees it."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self.pid}/root")
        return ""


def identities(files: Iterable[Path]) -> set[tuple[int, int]]:
    """Return device and inode of each file, which identify it under any name, in any tree."""
    return {_identity(str(file)) for file in files}


def every_process() -> dict[Process, int]:
    """Map each live process of this machine to the pid of its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] not in "ZX":
            found[Process(int(entry.name), int(fields[19]))] = int(fields[1])
    return found


def ancestors(of: int) -> set[int]:
    """Return the pid itself, its parent, and so on."""
    found: set[int] = set()
    while of > 0 and (fields := _stat(of)):
        found.add(of)
        of = int(fields[1])
    return found


def with_descendants(roots: Iterable[Process], parents: dict[Process, int]) -> set[Process]:
    """Return the roots and all their descendants, as `every_process` saw them."""
    children: dict[int, list[Process]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    found: set[Process] = set()
    pending = list(roots)
    while pending:
        process = pending.pop()
        if process not in found:
            found.add(process)
            pending += children.get(process.pid, [])
    return found


def end(processes: Iterable[Process], seconds: float) -> None:
    """Send TERM, wait up to `seconds`, send KILL; return once all are gone."""
    left = [process for process in processes if process.alive()]
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in left:
            process.send(number)
            process.send(signal.SIGCONT)  # a stopped process could not end
        left = _still_alive_after(left, patience)


def _still_alive_after(processes: list[Process], seconds: float) -> list[Process]:
    deadline = time.monotonic() + seconds
    while (processes := [process for process in processes if process.alive()]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return processes


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, ...; the name may contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _reap(pid: int) -> None:
    """Collect the exit status of a child of this process, as in a test."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
