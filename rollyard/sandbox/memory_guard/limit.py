"""Decides when to measure a sandbox, and which of its processes to end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.sandbox.memory_guard.process_memory import ProcessMemory, SandboxMemory

GROWTH = 4 << 30
"""Bytes a second that a sandbox can fill. One core fills 1 to 2.5 GB a second."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two measurements of one sandbox."""
TARGET = 7 / 8
"""Share of the limit to which the memory of a sandbox is reduced."""
SMALL_GROWTH = 1 / 64
"""Share of the limit by which files may grow although they are beyond the target. Our own tools write small files."""


def pause(used: int, limit: int) -> float:
    """Return the seconds until the next measurement: about the time in which the sandbox could reach its limit."""
    return min(LONGEST, max(SHORTEST, (limit - used) / GROWTH))


def to_end(memory: SandboxMemory, limit: float, before: int) -> Sequence[ProcessMemory]:
    """Return the processes to end: the largest ones, until the rest is below the target.

    `before`: bytes in files at the previous measurement. If files alone are beyond the target, and grew by at most
    SMALL_GROWTH, then processes may have some memory beyond the limit, so that the task can delete files.
    """
    target = limit * TARGET
    if target < memory.files <= before + limit * SMALL_GROWTH:
        limit = target = memory.files + limit * (1 - TARGET)
    if memory.used <= limit:
        return []
    left, chosen = memory.used, []
    for process in sorted(memory.processes, key=lambda process: -process.bytes):
        if left <= target:
            break
        if process.inside_pid != 1:  # the sandbox agent
            chosen.append(process)
            left -= process.bytes
    return chosen


def files_to_compare(files: int, limit: float, before: int) -> int:
    """Return the bytes in files with which the next measurement compares, so that small growths add up."""
    return min(files, before) if limit * TARGET < files <= before + limit * SMALL_GROWTH else files
