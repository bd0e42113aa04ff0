"""Child process of the pyslurm driver: the only code that imports pyslurm.

This module imports nothing of Rollyard and works with Python 3.9 or later, because the child may run under another
interpreter than the server, without Rollyard. Each line on stdin is a request: `{"id": 1, "call": "jobs", ...}`. Each
line on the original stdout is an answer: `{"id": 1, "answer": ...}` or `{"id": 1, "error": "why"}`. Before any request
the child writes an answer with the id 0: pyslurm's version, or the reason why pyslurm cannot be loaded. The process ends
when its stdin ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

NO_VALUE = 0xFFFFFFFE
"""Number with which Slurm marks a value that is not set."""
pyslurm: Any = None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library's own output goes to stderr, so that the server does not read it as an answer
    if not send_answer(answers, 0, start):
        return
    for line in sys.stdin:
        request = json.loads(line)
        id, call = request.pop("id"), CALLS[request.pop("call")]
        send_answer(answers, id, lambda: call(**request))  # noqa: B023


def send_answer(answers: Any, id: int, ask: Callable[[], Any]) -> bool:
    """Call `ask` and send its result or its error; return False for an error."""
    try:
        answer = {"id": id, "answer": ask()}
    except Exception as error:  # noqa: BLE001  (the server logs it)
        from_slurm = type(error).__module__.startswith("pyslurm")
        answer = {"id": id, "error": str(error) if from_slurm else f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)
    return "answer" in answer


def start() -> str:
    """Load pyslurm and return its version."""
    global pyslurm
    # Without this variable pyslurm reads slurm.conf at import, and ends the process if there is none.
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    # Slurm's library lists the waiting tasks of an array as a text of ranges. By default it cuts this text after 64
    # characters; 0 means no limit.
    os.environ["SLURM_BITSTR_LEN"] = "0"
    pyslurm = importlib.import_module("pyslurm")
    for module in (pyslurm.core.job.job, pyslurm.db.job):
        module._get_exit_code = exit_code_and_signal
    pyslurm.slurm_init(os.environ.get("SLURM_CONF"))
    return version()


def version() -> str:
    return str(pyslurm.__version__)


def exit_code_and_signal(status: int) -> tuple[int, int]:
    """Split a wait status into exit code and signal.

    This replaces pyslurm's function, which subtracts 128 from exit codes above 128: `exit 130` would read as `exit 2`.
    """
    return (0, 0) if status == NO_VALUE else (status >> 8 & 0xFF, status & 0x7F)


def jobs(prefix: str) -> list[dict[str, Any]]:
    """Return our user's jobs whose names have this prefix. pyslurm can only list the jobs of all users."""
    me, now = os.getuid(), time.time()
    found: list[dict[str, Any]] = []
    for job in pyslurm.Jobs.load().values():
        if job.user_id == me and text(job, "name").startswith(prefix):
            end = job.end_time
            if job.time_limit is None and end and end > now:  # Slurm reports an end in a year if there is no limit
                end = None
            found += job_records(job, node=job.allocated_nodes, end=end)
    return found


def accounting(ids: list[int]) -> list[dict[str, Any]]:
    """Return the records of these jobs in slurmdbd. For the id of an array: the records of all its tasks."""
    kept = pyslurm.slurmctld.Config.load().accounting_storage_type
    if not kept or kept.endswith("/none"):
        return []
    found: list[dict[str, Any]] = []
    for job in pyslurm.db.Jobs.load(pyslurm.db.JobFilter(ids=ids)).values():
        found += job_records(job, node=job.nodelist, end=job.end_time)
    return found


def job_records(job: Any, node: str | None, end: int | None) -> Iterator[dict[str, Any]]:
    """Yield the records of a job.

    One record of pyslurm can stand for all waiting tasks of an array. Such a record yields one record for each task.
    """
    facts = {
        "name": text(job, "name"),
        "comment": text(job, "comment"),
        "state": job.state,
        "reason": "" if job.state_reason in (None, "None") else job.state_reason,
        "node": "" if node in (None, "None assigned") else node,
        "restart_count": job.requeue_count,
        "exit_code": 128 + job.exit_code_signal if job.exit_code_signal else job.exit_code,
        "submit_time": job.submit_time,
        "start_time": job.start_time,
        "end_time": end,
        "cancelled_by": getattr(job, "cancelled_by", None) or "",
    }
    if job.array_id is None:
        yield {"id": str(job.id), **facts}
    else:
        # pyslurm reports task 0 as None
        tasks = waiting(job.array_tasks_waiting) if job.array_tasks_waiting else [job.array_task_id or 0]
        for task in tasks:
            yield {"id": f"{job.array_id}_{task}", **facts}


def waiting(ranges: str) -> Iterator[int]:
    """Yield the numbers in a list such as `0-3,7,10-18:4`, or in slurmdbd's hexadecimal mask, whose bit 0 is task 0."""
    if ranges.startswith("0x"):
        mask = int(ranges, 16)
        yield from (number for number in range(mask.bit_length()) if mask >> number & 1)
        return
    for part in ranges.strip("[]").split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def text(job: Any, field: str) -> str:
    """Return a text field; empty if the text is not UTF-8. Such a text is never ours, because Rollyard writes UTF-8."""
    try:
        return getattr(job, field) or ""
    except UnicodeDecodeError:
        return ""


def site() -> dict[str, Any]:
    return {
        "version": pyslurm.slurmctld.Config.load().version,
        "partitions": [partition(one) for one in pyslurm.Partitions.load().values()],
        "nodes": [node(one) for one in pyslurm.Nodes.load().values()],
    }


def partition(one: Any) -> dict[str, Any]:
    """Return a partition as JSON. None means no limit. pyslurm itself has the word UNLIMITED for some limits."""
    return {
        "name": one.name,
        "up": one.state == "UP",
        "default": bool(one.is_default),
        "max_seconds": one.max_time * 60 if isinstance(one.max_time, int) else None,
        "max_nodes": one.max_nodes if isinstance(one.max_nodes, int) else None,
        "accounts": None if one.allowed_accounts == ["ALL"] else one.allowed_accounts,
        "qos": None if one.allowed_qos == ["ALL"] else one.allowed_qos,
    }


def node(one: Any) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state.lower(),
        "reason": one.reason or "",
        "cpus": one.total_cpus,
        "memory_bytes": (one.real_memory or 0) << 20,
        "gpus": sum(count for name, count in one.configured_gres.items() if name.split(":")[0] == "gpu"),
        "gpu_types": [name.split(":")[1] for name in one.configured_gres if name.startswith("gpu:")],
        "features": one.available_features,
        "partitions": one.partitions,
    }


CALLS: dict[str, Callable[..., Any]] = {"version": version, "jobs": jobs, "accounting": accounting, "site": site}

if __name__ == "__main__":
    main()
