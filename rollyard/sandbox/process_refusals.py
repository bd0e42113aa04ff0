"""The starts of processes that the kernel has refused because a cgroup, or the user, had no room for one more."""

from __future__ import annotations

import _thread
import os
import resource
from contextlib import suppress
from pathlib import Path

_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class ProcessRefusals:
    """Counts the refusals in this process's cgroup and in those above it: Slurm and systemd limit the number of a job's
    processes (`TasksMax`). Every call of a tool asks for their number, so the files stay open.

    The kernel does not count what it refuses because of a user's limit (`ulimit -u`). So each call of `count` tries to start
    a thread, and counts a refusal. The memory guard does so between the calls.

    A sandbox that reaches its own limit is not counted: the kernel refuses its processes earlier, or in its own cgroup.
    """

    def __init__(self, own_cgroups: Path = _OWN, root: Path = _ROOT) -> None:
        self._files = []
        self._threads = 0
        for path in _event_files(own_cgroups, root):
            with suppress(OSError):
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def count(self) -> int:
        self._threads += refuses_thread()
        lines = [line for file in self._files for line in os.pread(file, 4096, 0).splitlines()]
        return self._threads + sum(int(line.split()[1]) for line in lines if line.startswith(b"max "))

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def refuses_thread() -> bool:
    """Return whether the kernel refuses this user a thread now. It takes 0.1 ms. Root has no limit."""
    if os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY:
        return False
    try:
        _thread.start_new_thread(int, ())
    except RuntimeError:
        return True
    return False


def _event_files(own_cgroups: Path, root: Path) -> list[Path]:
    """Return the files with the counts. `pids.events` of a cgroup above may have the refusals of others too;
    `pids.events.local` has its own only."""
    with suppress(OSError):
        for line in own_cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            top = root / "pids" if controllers == "pids" else root if not controllers else None
            own = Path(path.lstrip("/"))
            if top is not None and (top / own / "pids.events").exists():
                above = [top / cgroup / "pids.events.local" for cgroup in own.parents]
                local = top / own / "pids.events.local"
                return [local if local.exists() else top / own / "pids.events", *above]
    return []
