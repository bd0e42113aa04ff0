"""Protocol and data of a Slurm driver. A job absent from a complete snapshot is gone; a failed snapshot proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol


class JobState(StrEnum):
    """Slurm's names of states (man squeue, JOB STATE CODES)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    REVOKED = "REVOKED"

    @classmethod
    def read(cls, word: str) -> JobState:
        """Parse Slurm's word, with any addition (`CANCELLED by 1000`). An unknown state counts as not ended."""
        first = word.split()[0].rstrip("+") if word.split() else ""
        return cls.__members__.get(_SYNONYMS.get(first, first), cls.RUNNING)

    @property
    def ended(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


_SYNONYMS = {
    "CONFIGURING": "PENDING",  # its nodes are being booted
    "POWER_UP_NODE": "PENDING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "STOPPED": "SUSPENDED",
    "STAGE_OUT": "COMPLETING",
    "LAUNCH_FAILED": "FAILED",
    "RECONFIG_FAIL": "FAILED",
}
"""Flags and rarer states that squeue shows in place of a state."""


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    """`123`, or `123_4` for a task of an array."""
    name: str
    comment: str
    state: JobState
    reason: str = ""
    node: str = ""
    restart_count: int = 0
    exit_code: int | None = None
    submit_time: float | None = None
    start_time: float | None = None
    """Slurm's estimate while the job is pending, where there is one."""
    end_time: float | None = None
    """End of the job; while it runs, the end of its walltime. All times are Unix seconds."""
    cancelled_by: str = ""
    """User who cancelled it, where accounting has it: `uid 0 (root)`, or a user's name."""

    @property
    def owner(self) -> str:
        """Key that finds the job's Allocation again: the comment and, for a task of an array, `/` and its index."""
        _, underscore, task = self.id.partition("_")
        return f"{self.comment}/{task}" if underscore else self.comment


@dataclass(frozen=True)
class Snapshot:
    """All our jobs that Slurm knows, at one moment."""

    taken_at: float
    """Unix seconds when the query began: a job that was submitted earlier and is not listed does not exist."""
    jobs: Mapping[str, Job]

    def by_owner(self, owner: str) -> Sequence[Job]:
        return self._owners.get(owner, ())

    @cached_property
    def _owners(self) -> Mapping[str, Sequence[Job]]:
        found: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            found.setdefault(job.owner, []).append(job)
        return found


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A job to submit. `text` is a complete sbatch script, `#SBATCH` lines included; every driver takes the same text."""

    name: str
    comment: str
    text: str
    directory: str
    """Working folder; stdout and stderr are named in the script's directives."""
    within: str | None = None
    """Job to run in as a step, in place of submitting a job."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's resources, as Slurm counts them."""

    name: str
    state: str
    """Slurm's words in lower case: idle, mixed, allocated, down, drained, ... with any addition after a `+`."""
    reason: str = ""
    """Reason why it is down or drained. An administrator's reason is never removed."""
    cpus: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    """GPU types by the site's names; a site may have none."""

    @property
    def usable(self) -> bool:
        return not any(word in self.state for word in ("down", "drain", "fail", "maint", "unknown", "not_responding"))


@dataclass(frozen=True, slots=True)
class Partition:
    """None where the site sets no limit, or does not publish it."""

    name: str
    up: bool
    nodes: frozenset[str]
    default: bool = False
    max_seconds: int | None = None
    max_nodes: int | None = None
    accounts: frozenset[str] | None = None
    """Accounts that may use it; None for all."""
    qos: frozenset[str] | None = None
    """QOS that may use it; None for all."""


@dataclass(frozen=True, slots=True)
class Site:
    """Resources of the cluster. They are read seldom, to check a template before its submit and to explain delays."""

    version: str
    """Slurm's version, such as 22.05.8; `local` for the local driver."""
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]


class JobIds(list[str]):
    """Ids that Slurm gave to the submitted jobs: they are valid even if a complaint came with them."""

    complaint: str = ""
    """Complaint that came with them, such as `sbatch ended with exit code 1: ...`; empty where all went well."""


class Driver(Protocol):
    name: str
    """Name that doctor shows: local, cli, slurmrestd, pyslurm."""

    async def snapshot(self) -> Snapshot:
        """List all our jobs (name with our prefix), ended ones as long as Slurm remembers them, tasks of arrays one by one.

        Raises SlurmUnreachable, also for an answer that cannot be read.
        """
        ...

    async def submit(self, script: BatchScript) -> list[str]:
        """Submit; return the job's id, or an array's ids in order of the tasks; JobIds where a complaint came with them.

        Raises SubmitRefused with Slurm's words, SlurmUnreachable when it is not known whether the job was accepted.
        """
        ...

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        """End jobs (`scancel`), or send a signal to them. An unknown or ended id is no error. Raises SlurmUnreachable."""
        ...

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        """Look up in accounting how jobs ended that slurmctld has forgotten; jobs unknown to accounting are left out.

        Empty where a site keeps no accounting. Raises SlurmUnreachable.
        """
        ...

    async def site(self) -> Site:
        """Read the cluster's resources. Raises SlurmUnreachable."""
        ...

    async def close(self) -> None: ...
