"""The memory that this process and its children can use, and what of it is free: the machine's, within the limits of
their cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 50
_GREATEST_RESERVE = 512 << 20
_GREATEST_FILE = 1 << 16
"""Bytes of the longest of the files that are read here."""


@dataclass(frozen=True)
class _Files:
    """Names of files, and of a line of `memory.stat`, in one version of cgroups."""

    limit: str
    used: str
    events: str
    cache: str


_FIRST = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_inactive_file")
_SECOND = _Files("memory.max", "memory.current", "memory.events", "inactive_file")
_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_memory(own_cgroups: Path = _OWN, root: Path = _ROOT) -> int:
    """Return the bytes that are free. The page cache counts as free, because the kernel gives it up."""
    return min(_machine("MemAvailable"), *(free for _, free in _rooms(own_cgroups, root)), _UNLIMITED)


def whole_memory() -> int:
    """Return the bytes that this process and its children can use at most."""
    return min(_machine("MemTotal"), *(limit for limit, _ in _rooms(_OWN, _ROOT)), _UNLIMITED)


def reserve(whole: int) -> int:
    """Return the bytes that the sandboxes together must leave free of `whole`: the memory guard needs time to act."""
    return min(_GREATEST_RESERVE, whole // 16)


class KernelKillCounter:
    """The processes of this process's cgroup that the kernel has ended because memory ran out. Every call of a tool asks for
    their number, so the files stay open."""

    def __init__(self, own_cgroups: Path = _OWN, root: Path = _ROOT) -> None:
        self._files = []
        for top, own, files in _own_cgroups(own_cgroups, root):
            with suppress(OSError):
                self._files.append(os.open(top / own / files.events, os.O_RDONLY | os.O_CLOEXEC))

    def count(self) -> int:
        lines = [line for file in self._files for line in os.pread(file, 4096, 0).splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def _machine(name: str) -> int:
    _, found, rest = _read("/proc/meminfo").partition(f"{name}:")
    return int(rest.split(None, 1)[0]) << 10 if found else _UNLIMITED


def _rooms(own_cgroups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the free bytes of this process's cgroup and of those above it. Slurm may limit only the job's or
    the step's."""
    for top, own, files in _own_cgroups(own_cgroups, root):
        for cgroup in (own, *own.parents):
            folder = f"{top}/{cgroup}"
            most = _read(f"{folder}/{files.limit}").strip()
            if most.isdecimal() and int(most) < _UNLIMITED:
                now = _read(f"{folder}/{files.used}").strip()
                if now.isdecimal():
                    yield int(most), max(0, int(most) - int(now) + _number(f"{folder}/memory.stat", files.cache))


def _own_cgroups(own_cgroups: Path, root: Path) -> Iterator[tuple[Path, Path, _Files]]:
    """Yield for each version of cgroups: where it is mounted, this process's cgroup in it, and its files."""
    for line in _read(own_cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            own = Path(path.lstrip("/"))
            yield (root / "memory", own, _FIRST) if controllers else (root, own, _SECOND)


def _number(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _read(path: str | Path) -> str:
    """Return the text of a file of the kernel's; "" if there is none. Memory guards read such files many times a second, and
    this takes a third of the time of `Path.read_text`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, _GREATEST_FILE).decode()
    except OSError:
        return ""
    finally:
        os.close(file)
