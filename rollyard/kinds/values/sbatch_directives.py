"""Checks of a spec's values that go into a batch script: `#SBATCH` lines, environment variables and lines of shell. A
checked `#SBATCH` value cannot begin a new line or replace an option that Rollyard sets.

sbatch accepts shortened option names (`--arra` is `--array`), so shortened names are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator

from rollyard.kinds.values.hostlist import expand
from rollyard.kinds.values.quantity import Size

CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
OPTION = re.compile(r"[a-z][a-z0-9-]*")
OWN_OPTIONS = {
    "array", "chdir", "cluster-constraint", "clusters", "comment", "dependency", "error", "gid", "help", "input", "job-name",
    "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "tasks-per-node", "test-only",
    "uid", "usage", "version", "wait", "wrap",
}  # fmt: skip
"""Options that a spec may not have. Rollyard sets them, or needs sbatch's default for them.

The set is for the job of an allocation. For the server's job Rollyard sets two more options.
"""
FIELDS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "nodes": "nodes",
    "gpus": "gpusPerNode",
    "gpus-per-task": "gpusPerNode",
    "gpus-per-node": "gpusPerNode",
    "gres": "gres",
    "cpus-per-task": "cpusPerTask",
    "mem": "memory",
    "mem-per-cpu": "memoryPerCpu",
    "time": "timeLimit",
    "constraint": "constraint",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "reservation": "reservation",
    "licenses": "licenses",
    "exclusive": "exclusive",
    "nice": "nice",
}
"""Option of sbatch -> field of the allocation template to write instead."""
IDENTITY = {
    "ROLLYARD_ALLOCATION", "ROLLYARD_ALLOCATION_UID", "ROLLYARD_JOB", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME",
}  # fmt: skip
"""Environment variables that identify a job."""
READ_ONLY = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}
"""Variables that bash refuses to set."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRES = re.compile(r"[A-Za-z][\w.-]*(:[A-Za-z][\w.-]*)?(:[1-9]\d*[KMGT]?)?", re.ASCII)
_UNIT = re.compile(r".*[KMGT]i?B?|0", re.IGNORECASE)


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Check options.

    Raises ValueError for a malformed option name, for an option that Rollyard sets or that has a field of its own, and
    for a value with line breaks or other control characters.
    """
    for option, value in options.items():
        check_option(option, OWN_OPTIONS)
        if meant := _did_you_mean(option, FIELDS):
            raise ValueError(f"{option}: write the field `{FIELDS[meant]}` of the allocation instead")
        if CONTROL.search(value):
            raise ValueError(f"{option}: write it on one line, without control characters")
    return dict(options)


def check_option(option: str, ours: Iterable[str]) -> None:
    """Check one option. Raises ValueError for a malformed name, and for an option in `ours`, which Rollyard sets."""
    if not OPTION.fullmatch(option):
        raise ValueError(f"{option!r} is not an option of sbatch; write a long option without dashes, such as begin")
    if meant := _did_you_mean(option, ours):
        raise ValueError(f"{option}: Rollyard sets {meant}; leave it out")


def _did_you_mean(option: str, known: Iterable[str]) -> str | None:
    return option if option in known else next((name for name in sorted(known) if name.startswith(option)), None)


def check_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Check variables.

    Raises ValueError for a name that bash cannot set or that identifies a job, and for a value that sbatch refuses.
    """
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid name; write letters (a to z), digits and '_', and start with no digit"
            )
        if name in IDENTITY or name in READ_ONLY:
            raise ValueError(
                f"{name}: {'bash sets' if name in READ_ONLY else 'Rollyard and Slurm set'} this variable; leave it out"
            )
        check_shell(value)
    return dict(variables)


def check_shell(text: str) -> str:
    """Check lines of a script. Raises ValueError for NUL characters and Windows line ends, which sbatch refuses."""
    if "\0" in text or "\r\n" in text:
        raise ValueError("write it without NUL characters and with Unix line ends; sbatch accepts nothing else")
    return text


def gpus_in(gres: str) -> int:
    """Number of GPUs in a gres: `gpu:a100:4,shard:2` -> 4."""
    found = 0
    for item in gres.split(","):
        name, *rest = item.split(":")
        if name == "gpu":
            found += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return found


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; leave the field out")
    if CONTROL.search(text):
        raise ValueError("write it on one line, without control characters")
    return text


def _one_word(text: str) -> str:
    if re.search(r"\s", _one_line(text)) or text.startswith("-"):
        raise ValueError("write it without spaces, and do not start it with a dash")
    return text


def _one_name(text: str) -> str:
    if re.search(r"[,:]", _one_word(text)):
        raise ValueError("write one name, without commas and colons")
    return text


def _names(text: str) -> str:
    for name in _one_word(text).split(","):
        if not name:
            raise ValueError("write names separated by single commas, such as gpu,gpu2")
        _one_name(name)
    return text


def _gres(text: str) -> str:
    for item in _one_word(text).split(","):
        if not _GRES.fullmatch(item):
            raise ValueError(f"write name:count or name:type:count, such as shard:2 or gpu:a100:4, not {item!r}")
    return text


def _hosts(text: str) -> str:
    expand(_one_word(text))
    return text


def _memory(text: str) -> str:
    if not _UNIT.fullmatch(text):
        raise ValueError(f"write the unit, such as 128G; Slurm would read {text} as {text}M")
    return text


def _folder(text: str) -> str:
    if not _one_line(text).startswith("/"):
        raise ValueError("write an absolute path, as the allocation's node sees it, such as /tmp")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""Text on one line, not empty."""
Word = Annotated[str, AfterValidator(_one_word)]
Name = Annotated[str, AfterValidator(_one_name)]
Names = Annotated[str, AfterValidator(_names)]
"""Names separated by commas, as Slurm writes them."""
Gres = Annotated[str, AfterValidator(_gres)]
Hosts = Annotated[str, AfterValidator(_hosts)]
Memory = Annotated[Size, AfterValidator(_memory)]
Folder = Annotated[str, AfterValidator(_folder)]
Options = Annotated[dict[str, str], AfterValidator(check_options)]
Variables = Annotated[dict[str, str], AfterValidator(check_variables)]
Shell = Annotated[str, AfterValidator(check_shell)]
