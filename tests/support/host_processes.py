"""A sandbox's processes as the host sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostProcess:
    """One process; its start time distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    started: int
    pid_inside: int

    @property
    def runs(self) -> bool:
        return any(process.pid == self.pid and process.started == self.started for process in host_processes())


def host_processes() -> list[HostProcess]:
    """List all processes that are not zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            status = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        inside = next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))
        if fields[0] not in "ZX":
            found.append(HostProcess(int(folder.name), int(fields[1]), int(fields[19]), inside))
    return found


def descendants(pid: int) -> list[HostProcess]:
    everyone = host_processes()
    family, found = {pid}, []
    grown = True
    while grown:
        grown = False
        for process in everyone:
            if process.parent in family and process.pid not in family:
                family.add(process.pid)
                found.append(process)
                grown = True
    return found


def seers_of_mounts(folder: Path) -> Iterator[str]:
    """Yield the processes that see a mount at or below a folder."""
    for file in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if str(folder) in file.read_text():
                yield file.parent.name
        except OSError:
            continue
