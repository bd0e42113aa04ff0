"""Limits of the node agent's own process, and how the kernel spares it."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

SPARED = -500
"""`oom_score_adj` of a node agent that may lower it. With the lowest value, -1000, a leak of its own would end all others."""


def raise_soft_limits() -> None:
    """Raise the soft limits of open files and of the user's processes to the hard limits.

    A node agent has a few files for each sandbox and each stream; the usual soft limit is 1024. Files of sandboxes that are on
    their way in messages count against it too (unix(7)). The processes of all sandboxes count against the limit of the user,
    which Slurm takes over from the machine of the submit (PropagateResourceLimits), where it is often low.
    """
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))


def end_late() -> None:
    """Let the kernel end other processes before this one and the memory guard if memory runs out. Only a node agent with
    CAP_SYS_RESOURCE may. The sandbox starter undoes it for the sandboxes."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(SPARED))
