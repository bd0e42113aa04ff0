"""Reads and writes the bodies of slurmrestd's answers and requests: the parts that are the same in all versions. Pure.

A malformed body raises KeyError, TypeError, ValueError or AttributeError. The driver turns these errors into
SlurmUnreachable.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import BatchScript, Job, JobAccount, Node, Partition, Site
from rollyard.slurm.batch_script import JOB_PREFIX, directives
from rollyard.slurm.rest.job_fields import job_fields
from rollyard.slurm.scontrol_text import MIB, gpu_types_of_gres, gpus_of_gres
from rollyard.slurm.user_names import known_user

Body = Mapping[str, Any]


class NotJson(ValueError):
    """Raised if an answer is not a JSON object. Such an answer does not come from slurmrestd."""


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """Parsed answer to a query of the queue."""

    errors: list[tuple[int, str]]
    """Slurm's number and text of each error. If there are errors, the other fields are empty."""
    changed_at: int | None = None
    """Unix seconds of the queue's last change. 0: no change since the time that the query named. None: unknown."""
    jobs: Mapping[str, Job] = field(default_factory=dict)
    """Id -> job, for our jobs only; empty if `changed_at` is 0."""


@dataclass(frozen=True)
class Codec(ABC):
    """Reader and writer of one version of the bodies."""

    version: str
    """Version in the URL's path, such as v0.0.38."""
    fields: frozenset[str] | None = None
    """Fields of a job that this slurmrestd accepts in a submit; None if slurmrestd itself refuses unknown fields."""

    column = 0
    """This version's column in `job_fields.TABLE`."""

    # single values, whose form depends on the version

    @abstractmethod
    def number(self, value: Any) -> int | None:
        """Return a number; None if the number is not set or is infinite."""

    @abstractmethod
    def state(self, value: Any) -> JobState: ...

    @abstractmethod
    def exit_code(self, value: Any, state: JobState) -> int | None:
        """Return the exit code as a shell shows it (128 + n for signal n); None if it is unknown."""

    @abstractmethod
    def environment(self, variables: Mapping[str, str]) -> object: ...

    @abstractmethod
    def release(self, body: Body) -> str:
        """Return the version of Slurm."""

    @abstractmethod
    def node_state(self, record: Body) -> str: ...

    @abstractmethod
    def features(self, record: Body) -> frozenset[str]: ...

    @abstractmethod
    def partition(self, record: Body, nodes: frozenset[str]) -> Partition: ...

    @abstractmethod
    def changed_at(self, body: Body) -> int | None:
        """Return the time of the queue's last change, in Unix seconds.

        0: no change since the time that the query named. None: unknown.
        """

    @abstractmethod
    def signal_flags(self) -> Mapping[str, str]:
        """Return the URL parameters that direct a signal to the job's script; empty if this version has none."""

    # whole bodies

    def job(self, script: BatchScript, variables: Mapping[str, str]) -> Body:
        """Return the body of a submit. Raises SubmitRefused for an option of sbatch that this version does not have."""
        fields = job_fields(directives(script.text), self.column, self.version, self.fields)
        own = {"current_working_directory": script.directory, "environment": self.environment(variables)}
        return {"script": script.text, "job": {"standard_input": "/dev/null", **fields, **own}}

    def queue(self, body: Body, user: str) -> QueueAnswer:
        wrong = complaints(body)
        changed_at = None if wrong else self.changed_at(body)
        return QueueAnswer(wrong, changed_at, {} if wrong or changed_at == 0 else self.jobs(body, user))

    def jobs(self, body: Body, user: str) -> dict[str, Job]:
        """Return id -> job for our jobs. Each task of an array is a job of its own."""
        ours = (r for r in body["jobs"] if r["user_name"] == user and (r["name"] or "").startswith(JOB_PREFIX))
        return {id: self._queued(id, record) for record in ours for id in self._ids(record)}

    def _ids(self, record: Body) -> Iterator[str]:
        array, tasks = self.number(record["array_job_id"]), record["array_task_string"]
        if not array:
            yield str(record["job_id"])
        elif tasks:  # this record stands for all waiting tasks of the array
            yield from (f"{array}_{task}" for task in array_tasks(tasks))
        else:
            yield f"{array}_{self.number(record['array_task_id'])}"

    def _queued(self, id: str, record: Body) -> Job:
        state = self.state(record["job_state"])
        return Job(
            id=id,
            name=record["name"],
            comment=record["comment"] or "",
            state=state,
            reason=_reason_text(record["state_reason"]),
            node=record["nodes"] or "",
            restart_count=self.number(record["restart_cnt"]) or 0,
            exit_code=self.exit_code(record["exit_code"], state) if state.ended else None,
            submit_time=self._seconds(record["submit_time"]),
            start_time=self._seconds(record["start_time"]),
            end_time=self._seconds(record["end_time"]),
        )

    def accounting_records(self, body: Body) -> dict[str, Job]:
        """Return id -> job for the records of slurmdbd. If a job ran several times, return its last run."""
        found = (self._accounting_record(record) for record in body["jobs"])
        return {job.id: job for job in sorted(found, key=lambda job: job.submit_time or 0.0)}

    def accounts(self, body: Body) -> dict[str, list[JobAccount]]:
        """Return id -> runs of the job, oldest first, for the records of slurmdbd."""
        found: dict[str, list[JobAccount]] = {}
        for record in body["jobs"]:
            found.setdefault(self._accounted_id(record), []).append(self._account(record))
        return {id: sorted(runs, key=lambda run: run.submitted or 0.0) for id, runs in found.items()}

    def _account(self, record: Body) -> JobAccount:
        times = record["time"]
        given = record["tres"]["allocated"] or ()
        counts = {(one["type"], one["name"] or ""): self.number(one["count"]) or 0 for one in given}
        typed = sum(count for (kind, name), count in counts.items() if kind == "gres" and name.startswith("gpu:"))
        return JobAccount(
            name=record["name"] or "",
            submitted=self._seconds(times["submission"]),
            start=self._seconds(times["start"]),
            end=self._seconds(times["end"]),
            cpus=counts.get(("cpu", ""), 0),
            gpus=counts.get(("gres", "gpu"), typed),
        )

    def _accounted_id(self, record: Body) -> str:
        array = record["array"]
        task = self.number(array["task_id"])
        return f"{array['job_id']}_{task}" if array["job_id"] and task is not None else str(record["job_id"])

    def _accounting_record(self, record: Body) -> Job:
        times, state = record["time"], self.state(record["state"]["current"])
        return Job(
            id=self._accounted_id(record),
            name=record["name"] or "",
            comment=record["comment"]["job"] or "",
            state=state,
            reason=_reason_text(record["state"]["reason"]),
            node=_node_of(record["nodes"]),
            restart_count=self.number(record.get("restart_cnt")) or 0,
            exit_code=self.exit_code(record["exit_code"], state) if state.ended else None,
            submit_time=self._seconds(times["submission"]),
            start_time=self._seconds(times["start"]),
            end_time=self._seconds(times["end"]),
            cancelled_by=known_user(record.get("kill_request_user") or "") if state is JobState.CANCELLED else "",
        )

    def site(self, nodes: Body, partitions: Body) -> Site:
        members: dict[str, set[str]] = {}
        for record in nodes["nodes"]:
            for name in record["partitions"]:
                members.setdefault(name, set()).add(record["name"])
        known = (
            Node(
                name=record["name"],
                state=self.node_state(record).lower(),
                reason=record["reason"] or "",
                cpus=int(record["cpus"]),
                memory_bytes=int(record["real_memory"]) * MIB,
                gpus=gpus_of_gres(record["gres"] or ""),
                gpu_types=gpu_types_of_gres(record["gres"] or ""),
                features=self.features(record),
            )
            for record in nodes["nodes"]
        )
        found = (self.partition(p, frozenset(members.get(p["name"], ()))) for p in partitions["partitions"])
        return Site(self.release(nodes), {p.name: p for p in found}, {n.name: n for n in known})

    def _seconds(self, value: Any) -> float | None:
        return float(seconds) if (seconds := self.number(value)) else None


def parse_json(raw: bytes) -> Body:
    """Parse a body. Raises NotJson if the body is not a JSON object."""
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NotJson("no JSON object")
    return found


def array_tasks(text: str) -> Iterator[int]:
    """Yield the task numbers in a list such as `0-3,7,10-20:5%2`. Raises ValueError if slurmrestd cut the list off."""
    for part in text.partition("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if found is None:
            raise ValueError(f"the list of tasks {text!r} is cut short; start slurmrestd with SLURM_BITSTR_LEN=0")
        first, last = int(found[1]), int(found[2] or found[1])
        yield from range(first, last + 1, int(found[3] or 1))


def complaints(body: Body) -> list[tuple[int, str]]:
    """Return Slurm's number and text of each error in a body. A body with HTTP status 200 may have errors too."""
    found = []
    for entry in body.get("errors") or ():
        words = dict.fromkeys(str(entry[key]) for key in ("error", "description") if entry.get(key))
        number = entry.get("error_number") or entry.get("error_code") or 0  # Slurm 22.05 writes error_code
        found.append((int(number), ": ".join(words)))
    for entry in body.get("status") or ():  # one entry for each job of a cancel
        error = entry["error"]
        if error["code"]:
            found.append((int(error["code"]), str(error["string"])))
    return found


def names(text: str | None) -> frozenset[str] | None:
    """Split a list at its commas; return None for an empty list, which means no restriction."""
    return frozenset(text.split(",")) if text else None


def _reason_text(reason: str | None) -> str:
    return "" if reason in (None, "None") else str(reason)


def _node_of(nodes: str | None) -> str:
    return "" if nodes in (None, "None assigned") else str(nodes)
