"""The batch script: the same text for Slurm and for the local driver. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rollyard.errors import Cause, Invalid
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.base import BatchScript

JOB_PREFIX = "rollyard-"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def batch_script(
    template: AllocationTemplate, *, name: str, comment: str, log_path: str, directory: str, command: Sequence[str]
) -> BatchScript:
    """Options of the template as `#SBATCH` lines, then setup, environment and the command.

    Raises Invalid for a value that cannot stand on one line: it could smuggle in a directive of its own.
    """
    options = _options(template) | {
        "job-name": name,
        "comment": comment,
        "output": log_path,
        "open-mode": "append",
        "no-requeue": None,
    }
    lines = ["#!/bin/bash", *(_directive(k, v) for k, v in options.items()), ""]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in template.env.items()]
    if template.setup.strip():
        lines.append(template.setup.strip("\n"))
    lines += [f"exec {shlex.join(command)}", ""]
    return BatchScript(name=name, comment=comment, text="\n".join(lines), directory=directory)


def _options(template: AllocationTemplate) -> dict[str, str | None]:
    options: dict[str, str | None] = {
        "partition": template.partition,
        "account": template.account,
        "qos": template.qos,
        "nodes": str(template.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(template.gpus_per_node) if template.gpus_per_node else None,
        "cpus-per-task": str(template.cpus_per_task),
        "mem": template.memory,
        "time": template.time_limit,
        "constraint": template.constraint,
        "exclude": ",".join(template.exclude) or None,
        "reservation": template.reservation,
    }
    return {k: v for k, v in {**options, **template.extra_directives}.items() if v is not None}


def _directive(option: str, value: str | None) -> str:
    for text in (option, value or ""):
        if _CONTROL.search(text):
            message = "write it on one line, without control characters"
            raise Invalid(f"allocation.{option}: {message}", causes=[Cause(f"spec.allocation.{option}", message)])
    if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
        message = f"{option!r} is no sbatch option; write a long option without dashes, such as licenses"
        raise Invalid(message, causes=[Cause("spec.allocation.extraDirectives", message)])
    return f"#SBATCH --{option}" if value is None else f"#SBATCH --{option}={_quoted(value)}"


def _quoted(value: str) -> str:
    """sbatch reads directive lines with shell-like quotes."""
    return value if re.fullmatch(r"[\w@%+=:,./()&|*\[\]-]*", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
