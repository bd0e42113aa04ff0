"""What the owner tells the agent once, before the first call; and how the tools' processes are confined by it."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORKSPACE = "/workspace"
HOME = "/home/agent"
FALLBACK = "/opt/rollyard/fallback"
"""Last on PATH: a `python3` for images that have none."""

_DEFAULTS = {
    "HOME": HOME,
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "USER": "agent",
    "LOGNAME": "agent",
}
# A terminal is there, but nobody sits at it: no pagers, no editors, no colours, no questions.
_NON_INTERACTIVE = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}
_RUNTIMES = ("APPTAINER", "SINGULARITY")
# LC_CTYPE is what our own Python sets when it finds no locale.
_HOST_VARIABLES = frozenset({"HOME", "LC_CTYPE", "PROMPT_COMMAND", "PS1", "PWD", "OLDPWD", "SHLVL", "_"})


@dataclass(frozen=True)
class Settings:
    env: Mapping[str, str]
    memory_bytes: int
    """Address space of one process."""
    file_bytes: int
    """The longest file one process may write."""
    processes: int
    """Processes and threads of the whole sandbox."""
    cpus: tuple[int, ...]
    """The CPUs to run on; empty for all."""

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Settings:
        return cls(
            environment(os.environ, message["env"]),
            message["memory_bytes"],
            message["file_bytes"],
            message["processes"],
            tuple(message["cpus"]),
        )

    def confine(self, pid: int) -> None:
        """Put the limits on a process of ours that has not run anything of the task yet; its children inherit them.

        The agent itself stays free of them, so that it can still act when the task has used up everything.
        """
        for kind, value in (
            (resource.RLIMIT_AS, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.prlimit(pid, kind)[1]
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, kind, (limit, limit))
        if self.cpus:
            os.sched_setaffinity(pid, self.cpus)


def environment(image: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """What commands see: the image's environment without the runtime's and our own traces, then the task's."""
    kept = {k: v for k, v in image.items() if k not in _HOST_VARIABLES and not k.startswith(_RUNTIMES)}
    if kept.get("LANG") == "C":
        del kept["LANG"]  # what Apptainer sets where the image says nothing
    merged = _DEFAULTS | kept | _NON_INTERACTIVE | dict(extra)
    merged["PATH"] += f":{FALLBACK}"
    return merged
