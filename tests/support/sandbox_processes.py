"""The processes around a sandbox, found from any process in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.host_processes import HostProcess, descendants, host_processes

Found = dict[int, HostProcess]


def whose_command_has(*words: str) -> tuple[Found, int] | None:
    """Return all processes, and the first one whose command line ends with these words; None if there is none."""
    wanted = "".join(f"{word}\0" for word in words).encode()
    found = {one.pid: one for one in host_processes()}
    return next(((found, pid) for pid in found if command_line(pid).endswith(wanted)), None)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def agent(found: Found, pid: int) -> int:
    """Return process 1 of the sandbox of a process."""
    while found[pid].pid_inside != 1:
        pid = found[pid].parent
    return pid


def launcher(found: Found, pid: int) -> int:
    return found[agent(found, pid)].parent


def node_agent(found: Found, pid: int) -> int:
    pid = launcher(found, pid)
    while b"node-agent" not in command_line(pid):
        pid = found[pid].parent
    return pid


def child_of_node_agent(name: bytes) -> Callable[[Found, int], int]:
    def find(found: Found, pid: int) -> int:
        above = node_agent(found, pid)
        return next(one.pid for one in found.values() if one.parent == above and name in command_line(one.pid))

    return find


starter, guard = child_of_node_agent(b"sandbox/starter"), child_of_node_agent(b"memory_guard")


def whole_sandbox(found: Found, pid: int) -> list[int]:
    """Return all processes of a sandbox, its launcher first."""
    first = launcher(found, pid)
    return [first, *(one.pid for one in descendants(first))]
