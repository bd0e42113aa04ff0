"""Translation of sbatch's options to fields of a job in slurmrestd, which does not read a script's `#SBATCH` lines.

`TABLE` has one column for v0.0.38 and one for v0.0.40 and later. v0.0.38 passes each value to sbatch's own parser; later
versions have typed fields. To support another option, add a row. A test in `test_rest_driver.py` submits nearly every
option with sbatch and with slurmrestd, and compares the jobs that Slurm records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rollyard.core.errors import SubmitRefused
from rollyard.kinds.values.quantity import walltime_seconds

Fields = dict[str, object]
Write = Callable[[str], Fields]
"""Function that turns an option's value into fields of a job. Raises ValueError with the accepted forms."""

OMITTED_OPTIONS = {"export", "chdir"}
"""Options that are not translated, because the fields `environment` and `current_working_directory` replace them."""


def job_fields(directives: Mapping[str, str], column: int, version: str, known: frozenset[str] | None) -> Fields:
    """Return the fields of a job from the directives of its script.

    `known`: fields that this slurmrestd accepts; None if fields are not checked here. Raises SubmitRefused for a
    directive that cannot be translated.
    """
    fields: Fields = {}
    for option, value in directives.items():
        if option in OMITTED_OPTIONS:
            continue
        translated = _fields_of(option, value, column, version)
        if translated is None or (known is not None and not translated.keys() <= known):
            raise SubmitRefused(
                f"slurmrestd {version} does not support --{option}; leave it out, or run the server with --cluster cli"
            )
        for key, field in translated.items():
            fields[key] = _joined(fields[key], field) if key in fields else field
    try:
        _count_tasks(fields)
    except ValueError as error:
        given = " ".join(f"--{o}={directives[o]}" for o in ("nodes", "ntasks-per-node") if o in directives)
        raise SubmitRefused(f"Invalid specification for slurmrestd {version}: {given!r}: {error}") from None
    return fields


def job_variables(directives: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `VARIABLES` whose options are in `directives`. An `srun` in the script reads them."""
    return {variable: directives[option] for option, variable in VARIABLES.items() if option in directives}


def _fields_of(option: str, value: str, column: int, version: str) -> Fields | None:
    write = TABLE.get(option, (None, None))[column]
    try:
        return write(value) if write is not None else None
    except ValueError as error:
        raise SubmitRefused(f"Invalid --{option} specification for slurmrestd {version}: {value!r}: {error}") from None


def _joined(first: object, second: object) -> object:
    """Join the values of two options that set the same field, such as `gres` and `gpus-per-node`."""
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return f"{first},{second}"


def _count_tasks(fields: Fields) -> None:
    """Set the field `tasks` as sbatch does.

    Without this field Slurm would assume one task for the whole job, and would allocate CPUs for one task only. Raises
    ValueError if a text that should be a number is not one.
    """
    fewest, _, most = str(fields.get("nodes", "")).partition("-")
    if "tasks" not in fields and fewest and ("tasks_per_node" in fields or not most):
        fields["tasks"] = _int(fewest) * _int(str(fields.get("tasks_per_node", 1)))


# parsers of values


def text(key: str) -> Write:
    return lambda value: {key: value}


def whole(key: str) -> Write:
    return lambda value: {key: _int(value)}


def number(key: str, read: Callable[[str], int]) -> Write:
    """Write a number as an object `{set, infinite, number}`, which v0.0.40 and later use for numbers that may be
    missing. `0` is written as the number 0, not as a missing number. UNLIMITED and INFINITE are written as infinite."""

    def write(value: str) -> Fields:
        if value.upper() in ("UNLIMITED", "INFINITE"):
            return {key: {"set": True, "infinite": True, "number": 0}}
        return {key: {"set": True, "infinite": False, "number": read(value)}}

    return write


def flag(**fields: object) -> Write:
    """Write these fields for an option that has no value."""

    def write(value: str) -> Fields:
        if value:
            raise ValueError("write it without a value")
        return fields

    return write


def words(key: str, known: Mapping[str, object]) -> Write:
    """Write a value that must be one of the words in `known`."""

    def write(value: str) -> Fields:
        if value not in known:
            raise ValueError(f"write one of {', '.join(word or 'nothing' for word in known)}")
        return {key: known[value]}

    return write


def as_list(key: str) -> Write:
    """Write the whole value as a list of one text. Slurm joins the list to one text again."""
    return lambda value: {key: [value]}


def upper(key: str) -> Write:
    return lambda value: {key: value.upper().split(",")}


def gres(key: str, before: str = "gres/") -> Write:
    """Write a list such as `gpu:2,shard:1`. The prefix `before`, which this option of sbatch omits, is added to each entry."""
    return lambda value: {key: ",".join(before + one for one in value.split(","))}


def gpus_per_task(value: str) -> Fields:
    """Write the GPUs per task. As with sbatch, each task is also bound to its own GPUs."""
    count = value.rpartition(":")[2]
    return {"tres_per_task": f"gres/gpu:{value}", "tres_bind": f"gres/gpu:per_task:{count}"}


def warning_signal(value: str) -> Fields:
    """Parse `[B:]NAME[@SECONDS]`. Raises ValueError for another form, also for the letter R, which sbatch accepts."""
    found = re.fullmatch(r"(?:([RB]{1,2}):)?(\w+)(?:@(\d+))?", value)
    if found is None:
        raise ValueError("write [B:]SIGNAL[@SECONDS], such as B:USR1@120")
    letters, name, seconds = found[1] or "", found[2], int(found[3] or 60)
    if "R" in letters:
        raise ValueError("slurmrestd does not support R:; leave it out")
    fields: Fields = {"kill_warning_signal": name, "kill_warning_delay": number("", _int)(str(seconds))[""]}
    return fields | ({"kill_warning_flags": ["BATCH_JOB"]} if "B" in letters else {})


def old_warning_signal(value: str) -> Fields:
    """Write a warning signal for v0.0.38, which does not accept the letters R and B."""
    if ":" in value:
        raise ValueError("slurmrestd sends it only to the job's steps, not to its script; use --cluster cli for that")
    return {"signal": value}


def switches(value: str) -> Fields:
    count, _, wait = value.partition("@")
    more = {"wait_for_switch": _minutes(wait) * 60} if wait else {}
    return {"required_switches": number("", _int)(count)[""], **more}


def _int(value: str) -> int:
    if not re.fullmatch(r"-?\d+", value):
        raise ValueError("write a whole number")
    return int(value)


def _minutes(value: str) -> int:
    """Return a time limit in minutes, rounded up as Slurm does."""
    return -(-walltime_seconds(value) // 60)


def _megabytes(value: str) -> int:
    """Return a size such as `128G` in MiB, rounded up. A number without a unit is in MiB."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", value.upper())
    if found is None:
        raise ValueError("write a size such as 512M, 8G or 1T")
    size = int(found[1]) << {"K": 0, "": 10, "M": 10, "G": 20, "T": 30}[found[2]]
    return -(-size >> 10) if size else 0


def set_both(key: str) -> tuple[Write, Write]:
    return text(key), text(key)


def count(key: str) -> tuple[Write, Write]:
    return text(key), whole(key)


TABLE: Mapping[str, tuple[Write | None, Write | None]] = {
    # who and where
    "account": set_both("account"),
    "partition": set_both("partition"),
    "qos": set_both("qos"),
    "reservation": set_both("reservation"),
    "job-name": set_both("name"),
    "comment": set_both("comment"),
    "wckey": set_both("wckey"),
    "mcs-label": set_both("mcs_label"),
    "cluster-constraint": set_both("cluster_constraint"),
    # how much
    "nodes": set_both("nodes"),
    "ntasks": count("tasks"),
    "ntasks-per-node": count("tasks_per_node"),
    "ntasks-per-core": count("tasks_per_core"),
    "ntasks-per-socket": count("tasks_per_socket"),
    "cpus-per-task": count("cpus_per_task"),
    "mincpus": count("minimum_cpus_per_node"),
    "cores-per-socket": count("cores_per_socket"),
    "sockets-per-node": count("sockets_per_node"),
    "threads-per-core": count("threads_per_core"),
    "core-spec": count("core_specification"),
    "mem": (text("memory_per_node"), number("memory_per_node", _megabytes)),
    "mem-per-cpu": (text("memory_per_cpu"), number("memory_per_cpu", _megabytes)),
    "mem-per-gpu": (
        text("memory_per_gpu"),
        lambda value: {"memory_per_tres": f"gres/gpu:{_megabytes(value)}"},
    ),
    "tmp": (text("temporary_disk_per_node"), lambda value: {"temporary_disk_per_node": _megabytes(value)}),
    "gres": (text("gres"), gres("tres_per_node")),
    "gpus": (text("gpus"), gres("tres_per_job", "gres/gpu:")),
    "gpus-per-node": (text("gpus_per_node"), gres("tres_per_node", "gres/gpu:")),
    "gpus-per-socket": (text("gpus_per_socket"), gres("tres_per_socket", "gres/gpu:")),
    "gpus-per-task": (text("gpus_per_task"), gpus_per_task),
    "cpus-per-gpu": (text("cpus_per_gpu"), gres("cpus_per_tres", "gres/gpu:")),
    "gpu-bind": (text("gpu_binding"), gres("tres_bind", "gres/gpu:")),
    "gpu-freq": (text("gpu_frequency"), gres("tres_freq", "gpu:")),
    "gres-flags": (
        text("gres_flags"),
        words("flags", {"enforce-binding": ["GRES_BINDING_ENFORCED"], "disable-binding": ["GRES_BINDING_DISABLED"]}),
    ),
    "licenses": set_both("licenses"),
    "bb": set_both("burst_buffer"),
    "network": (None, text("network")),
    # which nodes
    "constraint": set_both("constraints"),
    "prefer": set_both("prefer"),
    "nodelist": (text("nodelist"), as_list("required_nodes")),
    "exclude": (text("exclude_nodes"), as_list("excluded_nodes")),
    "exclusive": (
        words("exclusive", {"": "exclusive", "user": "user", "mcs": "mcs"}),
        words("shared", {"": ["none"], "user": ["user"], "mcs": ["mcs"], "topo": ["topo"]}),
    ),
    "oversubscribe": (flag(oversubscribe="true"), flag(shared=["oversubscribe"])),
    "overcommit": (None, flag(overcommit=True)),
    "contiguous": (None, flag(contiguous=True)),
    "spread-job": (flag(spread_job="true"), flag(flags=["SPREAD_JOB"])),
    "use-min-nodes": (flag(minimum_nodes="true"), flag(flags=["PREFER_MINIMUM_NODE_COUNT"])),
    "switches": (None, switches),
    "distribution": set_both("distribution"),
    "reboot": (None, flag(reboot=True)),
    # when and for how long
    "time": (text("time_limit"), number("time_limit", _minutes)),
    "time-min": (text("time_minimum"), number("time_minimum", _minutes)),
    "begin": set_both("begin_time"),
    "deadline": set_both("deadline"),
    "dependency": set_both("dependency"),
    "kill-on-invalid-dep": (
        text("kill_on_invalid_dependency"),
        words("flags", {"yes": ["KILL_INVALID_DEPENDENCY"], "no": ["NO_KILL_INVALID_DEPENDENCY"]}),
    ),
    "array": set_both("array"),
    "hold": (flag(hold="true"), flag(hold=True)),
    "nice": count("nice"),
    "priority": (text("priority"), number("priority", _int)),
    "signal": (old_warning_signal, warning_signal),
    "requeue": (flag(requeue="true"), flag(requeue=True)),
    "no-requeue": (flag(no_requeue="true"), flag(requeue=False)),
    "no-kill": (flag(no_kill="set"), flag(kill_on_node_fail=False)),
    "wait-all-nodes": (
        text("wait_all_nodes"),
        words("wait_all_nodes", {"0": False, "1": True}),
    ),
    # output
    "output": set_both("standard_output"),
    "error": set_both("standard_error"),
    "input": set_both("standard_input"),
    "open-mode": (text("open_mode"), upper("open_mode")),
    "mail-type": (text("mail_type"), upper("mail_type")),
    "mail-user": set_both("mail_user"),
    "acctg-freq": set_both("account_gather_frequency"),
    "cpu-freq": set_both("cpu_frequency"),
}
"""Option of sbatch -> writer for v0.0.38, writer for v0.0.40 and later. None: the version cannot express the option."""

VARIABLES = {
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
    "distribution": "SLURM_DISTRIBUTION",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
}
"""Option of sbatch -> environment variable, for variables that sbatch sets and Slurm's daemons do not set."""
