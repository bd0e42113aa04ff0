"""The batch script of the server's own job. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.core.errors import BadRequest
from rollyard.kinds.values import sbatch_directives
from rollyard.slurm.batch_script import directive

WARNING_SECONDS = 120
"""Seconds before the end of the walltime at which Slurm sends SIGUSR1. Slurm may send the signal up to half a minute early,
and end the job up to half a minute late."""
OWN_OPTIONS = sbatch_directives.OWN_OPTIONS | {"nodes", "signal"}
"""Options that the user may not set: Rollyard sets them, or needs sbatch's default for them. The user may set all
others, also options such as `partition` that a pool may not have in `extraDirectives`."""


@dataclass(frozen=True)
class JobOptions:
    """Options of the server's job. Options that neither this object nor `server_script` sets have the site's defaults."""

    directives: Mapping[str, str] = field(default_factory=dict)
    """sbatch's long options without dashes: partition, account, qos, time, constraint, cpus-per-task, mem, ..."""
    setup: str = ""
    """Shell lines that run before the server, such as `module load python`."""


def server_script(options: JobOptions, *, name: str, comment: str, log: str, command: Sequence[str]) -> str:
    """Build the script of the server's job.

    Raises BadRequest if the name of an option is malformed or is in OWN_OPTIONS. Raises Invalid if a value contains a
    line break or another control character.
    """
    for option in options.directives:
        try:
            sbatch_directives.check_option(option, OWN_OPTIONS)
        except ValueError as error:
            raise BadRequest(f"--sbatch {error}") from None
    directives = {
        **options.directives,
        "job-name": name,
        "comment": comment,
        "output": log.replace("%", "%%"),
        "open-mode": "append",
        "nodes": "1",
        "ntasks": "1",
        # Slurm runs only one of these jobs at a time. The next job waits in the queue and gains priority by its age.
        "dependency": "singleton",
        # A requeued job would wait for two minutes and block the standby job. Instead the standby job takes over.
        "no-requeue": "",
        "signal": f"B:USR1@{WARNING_SECONDS}",
    }
    lines = ["#!/bin/bash", *(directive(option, value) for option, value in directives.items())]
    lines.append(":  # sbatch looks for directives up to the first command: none in the lines below may replace ours")
    if options.setup.strip():
        lines.append(options.setup.strip("\n"))
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])
