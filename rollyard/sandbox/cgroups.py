"""Limits of whole sandboxes by cgroups of version 2, where the node agent's own cgroup is delegated to it.

The layout below the delegated cgroup:

- `rollyard`: all processes that were in the delegated cgroup, such as this one. A cgroup with limits for its children has
  no processes of its own (the rule "no internal processes" of cgroups(7)).
- `rollyard-sandboxes-NAME`: the sandboxes of one node agent, all together limited to the allocation's memory less a
  reserve. The node agent locks this folder as long as it lives, so another one can tell that it is left over.
- `rollyard-sandboxes-NAME/SANDBOX`: one sandbox.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollyard.sandbox.base import Limits
from rollyard.sandbox.free_memory import reserve, whole_memory

LEAF, SANDBOXES = "rollyard", "rollyard-sandboxes-"
NEEDED = ("memory", "pids")
OWN_PROCESSES = 16
"""Processes of the runtime and of the sandbox agent, which do not count against the limit of the sandbox."""
BEYOND = 9 / 8
"""The kernel's limit of a sandbox's memory, as a share of the sandbox's limit. Between the two the memory guard ends
processes: it chooses them better and names them, and it spares a sandbox whose files alone reach the limit."""
PERIOD_MICROSECONDS = 100_000
LOOK_SECONDS, END_LOOKS = 0.01, 200
"""Seconds between two looks whether all processes of a cgroup have ended, and the greatest number of looks."""


class NoDelegation(Exception):
    """The reason why cgroups cannot limit sandboxes here."""


@dataclass(frozen=True)
class SandboxKills:
    """The kernel ended processes of one sandbox."""

    count: int
    memory_bytes: int
    """The sandbox's limit."""
    over_limit: bool
    """True: the sandbox used more than its limit. False: the memory of the allocation ran out."""

    def __str__(self) -> str:
        if not self.over_limit:
            return (
                f"the memory of the allocation ran out, and the kernel ended {self.count} of this sandbox's processes"
            )
        return (
            f"the sandbox used {round(self.memory_bytes * BEYOND) >> 20} MiB of memory, and its limit is "
            f"{self.memory_bytes >> 20} MiB; the kernel ended {self.count} of its processes"
        )


class SandboxCgroup:
    """The cgroup of one sandbox."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self._limit = limits.memory_bytes
        self._seen = self._events()

    def take_kills(self) -> SandboxKills | None:
        """Return what the kernel has ended since the last call; None if nothing."""
        before, self._seen = self._seen, self._events()
        ended = self._seen["oom_kill"] - before["oom_kill"]
        return SandboxKills(ended, self._limit, self._seen["oom"] != before["oom"]) if ended > 0 else None

    async def remove(self) -> None:
        """End the processes that are left, and remove the cgroup. It stays if the kernel does not end them in time."""
        for _ in range(END_LOOKS):
            if _removed(self.folder):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _events(self) -> dict[str, int]:
        counts = {"oom": 0, "oom_kill": 0}
        with suppress(OSError):
            for line in (self.folder / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                counts[name] = int(count)
        return counts


class SandboxCgroups:
    """The cgroup of all sandboxes of this process."""

    def __init__(self, folder: Path, lock: int, controllers: set[str]) -> None:
        self.folder = folder
        self._lock = lock
        self._controllers = controllers

    @classmethod
    def enter(cls) -> SandboxCgroups:
        """Move this process, and all others in its cgroup, into a child of the cgroup, and make a cgroup for sandboxes
        beside it. Cgroups that were left over by others are removed. Blocks for up to seconds.

        Raises NoDelegation.
        """
        base, controllers = delegated()
        whole = whole_memory()
        try:
            enabled = [name for name in (*NEEDED, "cpu") if name in controllers]
            (base / LEAF).mkdir(exist_ok=True)
            _enable(base, enabled)
            _sweep(base)
            folder, lock = _make_locked(base)
            _enable(folder, enabled)
            (folder / "memory.max").write_text(str(whole - reserve(whole) // 2))
        except OSError as error:
            raise NoDelegation(f"{error.filename or base}: {error.strerror}") from None
        return cls(folder, lock, set(enabled))

    def make(self, name: str, limits: Limits) -> SandboxCgroup:
        """Make the cgroup of a sandbox. Raises OSError."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "memory.max").write_text(str(round(limits.memory_bytes * BEYOND)))
        with suppress(FileNotFoundError):  # the kernel does not account for swap
            (folder / "memory.swap.max").write_text("0")
        (folder / "pids.max").write_text(str(limits.processes + OWN_PROCESSES))
        if "cpu" in self._controllers:
            (folder / "cpu.max").write_text(f"{math.ceil(limits.cpus) * PERIOD_MICROSECONDS} {PERIOD_MICROSECONDS}")
            (folder / "cpu.weight").write_text(str(min(10_000, max(1, round(limits.cpus * 100)))))
        return SandboxCgroup(folder, limits)

    def close(self) -> None:
        """End all processes of sandboxes, and remove the cgroups."""
        _remove_tree(self.folder)
        os.close(self._lock)


def _own_cgroup() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            own = line.removeprefix("0::/")
            break
    else:
        raise NoDelegation("this process is in no cgroup of version 2")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and before.split(" ")[3] == "/":
            return Path(before.split(" ")[4]) / own
    raise NoDelegation("no file system of cgroups of version 2 is mounted")


def delegated() -> tuple[Path, set[str]]:
    """Return the cgroup that is delegated to this process, and its controllers. Raises NoDelegation."""
    own = _own_cgroup()
    base = own.parent if own.name == LEAF else own
    try:
        controllers = set((base / "cgroup.controllers").read_text().split())
    except OSError as error:
        raise NoDelegation(f"{error.filename}: {error.strerror}") from None
    if not (base / "cgroup.type").exists():
        raise NoDelegation("this process is in the root of all cgroups")
    if lacking := [name for name in NEEDED if name not in controllers]:
        raise NoDelegation(f"the cgroup of this process has no controller {' and '.join(lacking)}")
    if not (base / "cgroup.kill").exists():
        raise NoDelegation("the kernel is older than 5.14")
    if not all(os.access(path, os.W_OK) for path in (base, base / "cgroup.procs", base / "cgroup.subtree_control")):
        raise NoDelegation("the cgroup of this process is not delegated to its account")
    # Root may write everywhere. But a cgroup has one owner, and the owner says whether it gives the cgroup away.
    if os.geteuid() == 0 and not any(_says_delegated(base, name) for name in ("trusted.delegate", "user.delegate")):
        raise NoDelegation("the cgroup of this process is not marked as delegated")
    return base, controllers


def _says_delegated(base: Path, attribute: str) -> bool:
    try:
        return os.getxattr(base, attribute) == b"1"
    except OSError:
        return False


def _enable(base: Path, controllers: list[str]) -> None:
    """Move all processes of a cgroup into its leaf, and give the controllers to its children."""
    words = " ".join(f"+{name}" for name in controllers)
    for last in (False,) * 20 + (True,):
        for pid in (base / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (base / LEAF / "cgroup.procs").write_text(pid)
        try:
            (base / "cgroup.subtree_control").write_text(words)
            return
        except OSError:  # a process was started meanwhile
            if last:
                raise


def _make_locked(base: Path) -> tuple[Path, int]:
    while True:
        folder = base / f"{SANDBOXES}{secrets.token_hex(4)}"
        folder.mkdir()
        with suppress(FileNotFoundError, BlockingIOError):  # another node agent has just taken it for a left one
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(base: Path) -> None:
    """Remove the cgroups of node agents that have ended."""
    for folder in base.glob(f"{SANDBOXES}*"):
        with suppress(FileNotFoundError, BlockingIOError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(folder)
            finally:
                os.close(lock)


def _remove_tree(folder: Path) -> None:
    with suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    for _ in range(END_LOOKS):
        left = [child for child in folder.iterdir() if child.is_dir()] if folder.exists() else []
        if all([_removed(child) for child in left]) and _removed(folder):
            return
        time.sleep(LOOK_SECONDS)


def _removed(folder: Path) -> bool:
    """Kill the processes of a cgroup without children, and remove the cgroup if all have ended."""
    try:
        (folder / "cgroup.kill").write_text("1")
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
