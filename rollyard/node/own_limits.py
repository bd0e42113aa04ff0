"""Limits of the node agent's own process, and how the kernel spares it."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

SPARED = -500
"""`oom_score_adj` of a node agent that may lower it. With the lowest value, -1000, a leak of its own would end all others."""


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit. A node agent has a few files for each sandbox and each stream;
    the usual soft limit is 1024. Files of sandboxes that are on their way in messages count against it too (unix(7))."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_late() -> None:
    """Let the kernel end other processes before this one and the memory guard if memory runs out. Only a node agent with
    CAP_SYS_RESOURCE may. The sandbox starter undoes it for the sandboxes."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(SPARED))
