"""The batch script: the same text for Slurm and for the local driver. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rollyard.errors import Cause, Invalid, SubmitRefused
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.base import BatchScript

JOB_PREFIX = "rollyard-"
FOLDER = "$ROLLYARD_ALLOCATION"
"""As a word of the command: the allocation's folder."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_FIELDS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "mem": "memory",
    "time": "timeLimit",
    "constraint": "constraint",
    "exclude": "exclude",
    "reservation": "reservation",
}
"""sbatch's option -> the field of the template that it comes from."""


def batch_script(
    template: AllocationTemplate,
    *,
    name: str,
    comment: str,
    log_path: str,
    directory: str,
    command: Sequence[str],
    tasks: int | None = None,
    after_job: str | None = None,
) -> BatchScript:
    """Options of the template as `#SBATCH` lines, then setup, environment and the command.

    With `tasks` it asks for a job array of indices 0 to tasks - 1; `directory` then has a folder, or a link to one, called
    after each index, and `log_path` is below it. The command finds its own as the word FOLDER. With `after_job` it starts
    only when that job has ended, however it ended.

    Raises Invalid, with the field, for a value that cannot stand on one line: it could smuggle in a directive of its own.
    """
    options = _options(template) | {
        "job-name": name,
        "comment": comment,
        "output": _log_pattern(log_path, tasks),
        "array": f"0-{tasks - 1}" if tasks is not None else None,
        "dependency": f"afterany:{after_job}" if after_job is not None else None,
        "open-mode": "append",
        "no-requeue": None,
    }
    for option in ("array", "dependency"):
        if options[option] is None:
            del options[option]
    lines = ["#!/bin/bash", *(_directive(k, v) for k, v in options.items())]
    lines.append(":  # sbatch looks for directives up to the first command: none in `setup` may replace ours")
    own = (
        shlex.quote(directory)
        if tasks is None
        else f'"$(cd -P {shlex.quote(directory)}/"$SLURM_ARRAY_TASK_ID" && pwd)"'
    )
    lines.append(f"export ROLLYARD_ALLOCATION={own}")
    lines += [_export(key, value) for key, value in template.env.items()]
    if template.setup.strip():
        lines.append(template.setup.strip("\n"))
    words = (f'"{FOLDER}"' if word == FOLDER else shlex.quote(word) for word in command)
    lines += [f"exec {' '.join(words)}", ""]
    return BatchScript(name=name, comment=comment, text="\n".join(lines), directory=directory)


def _log_pattern(path: str, tasks: int | None) -> str:
    """sbatch reads %j and its like in it."""
    path = path.replace("%", "%%")
    folder, _, name = path.rpartition("/")
    return path if tasks is None else f"{folder}/%a/{name}"


def directives(text: str) -> dict[str, str]:
    """The `#SBATCH --option=value` lines before the first command, as sbatch reads them. Raises SubmitRefused."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"))
            except ValueError as error:
                raise SubmitRefused(f"Invalid directive {line!r}: {error}") from None
            for word in words:
                option, _, value = word.removeprefix("--").partition("=")
                found[option] = value
        elif line.strip() and not line.startswith("#"):
            break
    return found


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
    field = f"spec.allocation.{_FIELDS.get(option, f'extraDirectives.{option}')}"
    if not _OPTION.fullmatch(option):
        message = f"{option!r} is no sbatch option; write a long option without dashes, such as licenses"
        raise _invalid("spec.allocation.extraDirectives", message)
    if not value:  # a flag, such as exclusive: ""
        return f"#SBATCH --{option}"
    if _CONTROL.search(value):
        raise _invalid(field, "write it on one line, without control characters")
    return f"#SBATCH --{option}={_quoted(value)}"


def _export(name: str, value: str) -> str:
    if "\0" in value:
        raise _invalid(f"spec.allocation.env.{name}", "write it without NUL characters")
    return f"export {name}={shlex.quote(value)}"


def _invalid(field: str, message: str) -> Invalid:
    return Invalid(f"{field}: {message}", causes=[Cause(field, message)])


def _quoted(value: str) -> str:
    """sbatch reads directive lines with shell-like quotes."""
    return value if re.fullmatch(r"[\w@%+=:,./()&|*\[\]-]*", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
