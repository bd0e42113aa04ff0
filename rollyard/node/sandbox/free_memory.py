"""The memory that this process and its children can still use: the machine's, within the limits of their cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 50


def free_memory(own_cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that are free. The page cache counts as free, because the kernel gives it up."""
    return min(_available(), *_rooms(own_cgroups, root), _UNLIMITED)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _rooms(own_cgroups: Path, root: Path) -> Iterator[int]:
    """Yield the free bytes of this process's cgroup and of those above it. Slurm may limit only the job's or the step's."""
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
                yield max(0, int(most) - int(now) + _cached(folder / "memory.stat", cache))


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
