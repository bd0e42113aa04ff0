"""Settings that the sandbox's owner sends once, before the first call: environment and limits of the tools'
processes."""

from __future__ import annotations

import os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rollyard.sandbox_agent.own_user import User

START_SECONDS = 10.0
OPEN_FILES = 1024
"""Greatest number of open files of a process. All sandboxes of a user share the number of files on their way in messages,
and each sandbox can use up as many as this limit (unix(7), ETOOMANYREFS)."""
LOCKED_BYTES = 8 << 20
WORKSPACE = "/workspace"
HOME = "/home/agent"
APT_CONFIG = "/opt/rollyard/apt.conf"
FALLBACK = "/opt/rollyard/fallback"
"""Last folder on PATH, with a `python3` for images that have none."""

_DEFAULTS = {
    "HOME": HOME,
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "USER": "agent",
    "LOGNAME": "agent",
}
# Programs see a terminal, but there is no user. These variables turn off pagers, colours and questions.
NON_INTERACTIVE = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}
_RUNTIMES = ("APPTAINER", "SINGULARITY")
# LC_CTYPE: our own Python sets this variable if it finds no locale.
_HOST_VARIABLES = frozenset({"HOME", "LC_CTYPE", "PROMPT_COMMAND", "PS1", "PWD", "OLDPWD", "SHLVL", "_"})


class Settings:
    def __init__(self, message: Mapping[str, Any], user: User | None = None) -> None:
        image = message.get("image_env", {})
        self.env = environment({**os.environ, **image}, {**_user_variables(user, image), **message["env"]})
        self.memory_bytes: int = message["memory_bytes"]
        """Greatest address space of one process."""
        self.limits_address_space: bool = message.get("address_space", True)
        self.file_bytes: int = message["file_bytes"]
        """Greatest length of a file that a process writes."""
        self.processes: int = message["processes"]
        """Greatest number of processes and threads in the whole sandbox."""
        self.cpus: tuple[int, ...] = tuple(message["cpus"])
        """CPUs to run on; empty for all."""
        self.with_bash: bool = message.get("with_bash", True)
        """True: bash starts at once, and not with its first call."""
        self.workdir = _workdir(message.get("workdir") or WORKSPACE)
        """Folder in which bash and IPython start, and in which the editor's relative paths start."""

    def confine(self, pid: int, address_space: bool = True) -> None:
        """Set the limits of a process, before the process runs code of the task. Child processes inherit the limits.
        `address_space`: whether its length is limited.

        The sandbox agent itself has no limits, so that it can still act when the task has reached all limits.
        """
        memory = self.memory_bytes if self.limits_address_space and address_space else resource.RLIM_INFINITY
        for kind, value in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_MEMLOCK, LOCKED_BYTES),
        ):
            hard = resource.prlimit(pid, kind)[1]
            given = [bound for bound in (value, hard) if bound != resource.RLIM_INFINITY]
            limit = min(given, default=resource.RLIM_INFINITY)
            resource.prlimit(pid, kind, (limit, limit))
        if self.cpus:
            os.sched_setaffinity(pid, self.cpus)
        _end_first(pid)


def _user_variables(user: User | None, image: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell who the user is, unless the image sets them. HOME is a folder that exists."""
    if user is None:
        return {}
    name = user.name or ("root" if user.uid == 0 else _DEFAULTS["USER"])
    homes = (user.home, "/root" if user.uid == 0 else "")
    own = {"HOME": next((home for home in homes if home and os.path.isdir(home)), HOME), "USER": name, "LOGNAME": name}
    if user.uid == 0:
        own["APT_CONFIG"] = APT_CONFIG
    return {variable: image.get(variable, value) for variable, value in own.items()}


def _workdir(path: str) -> str:
    """Return the image's working folder, made if the image lacks it; / if it cannot be made. A relative path begins at the
    root."""
    path = os.path.join("/", path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return "/"
    return path


def _end_first(pid: int) -> None:
    """Let the kernel end this process and its children before all others if memory runs out on the node or in the job's
    cgroup. The processes can undo this."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as score:
                score.write(b"1000")
        except PermissionError:
            # For a moment after its start, a child of this process, which nobody may trace, belongs to root.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
            continue
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended already
        return


def environment(image: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of commands. It has the variables of four sources: defaults, `image`, variables that turn
    off interaction, and `extra`. If several sources have a variable, the last of them counts. FALLBACK is appended to
    PATH.

    Variables of Apptainer and of the host are left out of `image`.
    """
    kept = {k: v for k, v in image.items() if k not in _HOST_VARIABLES and not k.startswith(_RUNTIMES)}
    if kept.get("LANG") == "C":
        del kept["LANG"]  # Apptainer sets LANG=C if the image sets none
    merged = _DEFAULTS | kept | NON_INTERACTIVE | dict(extra)
    merged["PATH"] += f":{FALLBACK}"
    return merged
