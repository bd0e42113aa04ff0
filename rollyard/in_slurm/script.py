"""The batch script of the server's own job. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.errors import BadRequest
from rollyard.slurm.script import directive

WARNING_SECONDS = 120
"""Before the walltime ends; Slurm may warn up to half a minute early, and kills up to half a minute late."""
OURS = {"array", "chdir", "comment", "dependency", "error", "job-name", "no-requeue", "nodes", "ntasks", "open-mode",
        "output", "requeue", "signal", "wrap"}  # fmt: skip
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class JobOptions:
    """What the person asked for; what is left out is the site's default."""

    directives: Mapping[str, str] = field(default_factory=dict)
    """sbatch's long options without dashes: partition, account, qos, time, constraint, cpus-per-task, mem, ..."""
    setup: str = ""
    """Shell lines before the server, such as `module load python`."""


def server_script(options: JobOptions, *, name: str, comment: str, log: str, command: Sequence[str]) -> str:
    """Raises BadRequest for an option that is ours to set, Invalid for a value that does not stand on one line."""
    for option in options.directives:
        _check(option)
    directives = {
        **options.directives,
        "job-name": name,
        "comment": comment,
        "output": log.replace("%", "%%"),
        "open-mode": "append",
        "nodes": "1",
        "ntasks": "1",
        # One at a time, by Slurm's own account of it; the next in line waits with its age growing.
        "dependency": "singleton",
        # A requeued job waits two minutes and blocks the one behind it meanwhile: the successor takes over instead.
        "no-requeue": "",
        "signal": f"B:USR1@{WARNING_SECONDS}",
    }
    lines = ["#!/bin/bash", *(directive(option, value) for option, value in directives.items())]
    lines.append(":  # sbatch looks for directives up to the first command: none in the lines below may replace ours")
    if options.setup.strip():
        lines.append(options.setup.strip("\n"))
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])


def _check(option: str) -> None:
    if not _OPTION.fullmatch(option):
        raise BadRequest(f"{option!r} is no option of sbatch; write a long one without dashes, such as licenses=x:1")
    if option in OURS:
        raise BadRequest(f"--{option} of the server's job is set by rollyard itself; leave it out")
