"""The batch script of the server's own job. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.core.errors import BadRequest
from rollyard.kinds.values import sbatch_directives
from rollyard.slurm.batch_script import directive

WARNING_SECONDS = 120
"""Before the walltime ends; Slurm may warn up to half a minute early, and kills up to half a minute late."""
OWN_OPTIONS = sbatch_directives.OWN_OPTIONS | {"nodes", "signal"}
"""What else has a field in a pool's template is the person's to set here."""


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
        try:
            sbatch_directives.check_option(option, OWN_OPTIONS)
        except ValueError as error:
            raise BadRequest(f"--sbatch {error}") from None
    asked = {
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
    lines = ["#!/bin/bash", *(directive(option, value) for option, value in asked.items())]
    lines.append(":  # sbatch looks for directives up to the first command: none in the lines below may replace ours")
    if options.setup.strip():
        lines.append(options.setup.strip("\n"))
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])
