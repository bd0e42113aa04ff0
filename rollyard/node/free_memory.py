"""The memory that this process and its children can use, and what of it is free: the machine's, within the limits of
their cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 50
_GREATEST_RESERVE = 512 << 20


_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_memory(own_cgroups: Path = _OWN, root: Path = _ROOT) -> int:
    """Return the bytes that are free. The page cache counts as free, because the kernel gives it up."""
    return min(_machine("MemAvailable"), *(free for _, free in _rooms(own_cgroups, root)), _UNLIMITED)


def whole_memory(own_cgroups: Path = _OWN, root: Path = _ROOT) -> int:
    """Return the bytes that this process and its children can use at most."""
    return min(_machine("MemTotal"), *(limit for limit, _ in _rooms(own_cgroups, root)), _UNLIMITED)


def reserve(whole: int) -> int:
    """Return the bytes that the sandboxes together must leave free of `whole`: the memory guard needs time to act."""
    return min(_GREATEST_RESERVE, whole // 16)


def _machine(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _rooms(own_cgroups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the free bytes of this process's cgroup and of those above it. Slurm may limit only the job's or
    the step's."""
    for line in _read(own_cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, limit, used, cache = (
            (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else (root, "memory.max", "memory.current", "inactive_file")
        )
        own = Path(path.lstrip("/"))
        for cgroup in (own, *own.parents):
            folder = top / cgroup
            most, now = _read(folder / limit).strip(), _read(folder / used).strip()
            if most.isdecimal() and now.isdecimal() and int(most) < _UNLIMITED:
                yield int(most), max(0, int(most) - int(now) + _cached(folder / "memory.stat", cache))


def _cached(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
