"""Batch script of a job: the same text for Slurm and for the local driver. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rollyard.core.errors import Invalid, SubmitRefused
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.values.sbatch_directives import CONTROL
from rollyard.slurm.base import BatchScript

JOB_PREFIX = "rollyard-"
FOLDER = "$ROLLYARD_ALLOCATION"
"""Word in a command that stands for the allocation's folder."""
UID = "ROLLYARD_ALLOCATION_UID"
"""Variable with the allocation's uid. Slurm delivers the script, so unlike a file in a shared folder it is never of an
earlier allocation of the same name."""


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
    unpack: Sequence[str] = (),
    uids: Sequence[str] = (),
) -> BatchScript:
    """Return a script with the template's options as `#SBATCH` lines, then environment, setup and the command.

    `tasks`: the job is an array with the indices 0 to tasks - 1; None for a job without an array. For an array,
    `directory` contains a subfolder, or a link to a folder, for each task. Its name is the task's index. Each task
    writes its log there. In `command`, the word FOLDER is replaced by the folder of the job or task. `after_job`: job
    that must end, in any way, before this job starts. `unpack`: command that prints a folder from which the job imports
    Python modules. If this command fails, the job imports them as usual. `uids`: the allocation's uid, or the uid of each
    task's allocation; empty if the job must not know it.

    Raises Invalid for a value with a line break or another control character, because a line break could add another
    directive.
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
    lines = ["#!/bin/bash", *(directive(k, v) for k, v in options.items())]
    lines.append(":  # sbatch looks for directives up to the first command: none in `setup` may replace ours")
    own = (
        shlex.quote(directory)
        if tasks is None
        else f'"$(cd -P {shlex.quote(directory)}/"$SLURM_ARRAY_TASK_ID" && pwd)"'
    )
    lines.append(f"export ROLLYARD_ALLOCATION={own}")
    if uids:
        lines.append(f"{UID}S=({shlex.join(uids)})")
        lines.append(f'export {UID}="${{{UID}S[{"$SLURM_ARRAY_TASK_ID" if tasks is not None else 0}]}}"')
    lines += [f"export {key}={shlex.quote(value)}" for key, value in template.env.items()]
    if template.setup.strip():
        lines.append(template.setup.strip("\n"))
    if unpack:
        lines.append(f'unpacked=$({shlex.join(unpack)}) && export PYTHONPATH="$unpacked${{PYTHONPATH:+:$PYTHONPATH}}"')
    words = (f'"{FOLDER}"' if word == FOLDER else shlex.quote(word) for word in command)
    lines += [f"exec {' '.join(words)}", ""]
    return BatchScript(name=name, comment=comment, text="\n".join(lines), directory=directory, within=template.within)


def _log_pattern(path: str, tasks: int | None) -> str:
    """Return the log's path as a pattern for sbatch. Each % is doubled, because sbatch replaces codes such as %j.

    In an array (`tasks` is set), each task has its log in the folder that is named by its index (%a).
    """
    path = path.replace("%", "%%")
    folder, _, name = path.rpartition("/")
    return path if tasks is None else f"{folder}/%a/{name}"


def directives(text: str) -> dict[str, str]:
    """Parse the `#SBATCH --option=value` lines before the first command, as sbatch does. Raises SubmitRefused."""
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
    """Return the template's options by name; the value of a flag is empty."""
    options = {
        "partition": template.partition,
        "account": template.account,
        "qos": template.qos,
        "nodes": str(template.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": _gpus(template),
        "gres": template.gres,
        "cpus-per-task": str(template.cpus_per_task),
        "mem": _memory(template.memory),
        "mem-per-cpu": _memory(template.memory_per_cpu),
        "time": template.time_limit,
        "constraint": template.constraint,
        "nodelist": ",".join(template.nodelist) or None,
        "exclude": ",".join(template.exclude) or None,
        "reservation": template.reservation,
        "licenses": template.licenses,
        "exclusive": "" if template.exclusive else None,
        "nice": str(template.nice) if template.nice else None,
    }
    return {k: v for k, v in {**options, **template.extra_directives}.items() if v is not None}


def _gpus(template: AllocationTemplate) -> str | None:
    if not template.gpus_per_node:
        return None
    return f"{template.gpu_type}:{template.gpus_per_node}" if template.gpu_type else str(template.gpus_per_node)


def _memory(size: str | None) -> str | None:
    """Return a size in Slurm's units. Slurm does not know `GiB`, but its `G` means GiB."""
    return re.sub(r"i?B$", "", size, flags=re.IGNORECASE) if size is not None else None


def directive(option: str, value: str | None) -> str:
    """Return one `#SBATCH` line. Without a value, the option is a flag. Raises Invalid for a value with a control
    character."""
    if not value:
        return f"#SBATCH --{option}"
    if CONTROL.search(value):  # the options of a template are checked before, but not the path of the data folder
        raise Invalid(f"--{option}: {value!r} cannot stand on one line of a batch script; choose another path")
    return f"#SBATCH --{option}={_quoted(value)}"


def _quoted(value: str) -> str:
    """Return the value, in quotes if sbatch would otherwise split or change it."""
    return value if re.fullmatch(r"[\w@%+=:,./()&|*\[\]-]*", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
