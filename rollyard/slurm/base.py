"""What a Slurm driver does. Absence from a complete snapshot means "not there"; a failed snapshot means nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol


class JobState(StrEnum):
    """Slurm's own words (man squeue, JOB STATE CODES)."""

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
        """Slurm's word, with what follows it (`CANCELLED by 1000`). What we do not know has not ended: nothing is concluded."""
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
    """While it is pending: Slurm's estimate, where it has one."""
    end_time: float | None = None
    """When it ended or, while it runs, when its walltime ends. All times are Unix seconds."""
    cancelled_by: str = ""
    """User who cancelled it, where accounting says so: `uid 0 (root)`, or a user's name."""

    @property
    def owner(self) -> str:
        """The comment and, for a task of an array, `/` and its index: what one Allocation is found again by."""
        _, underscore, task = self.id.partition("_")
        return f"{self.comment}/{task}" if underscore else self.comment


@dataclass(frozen=True)
class Snapshot:
    """All jobs of ours that Slurm knows, as of one moment."""

    taken_at: float
    """Unix seconds when the look-up began: what was submitted before and is not here is not there."""
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
    """What is submitted. `text` is a complete sbatch script, `#SBATCH` lines included; every driver takes the same text."""

    name: str
    comment: str
    text: str
    directory: str
    """Working folder; stdout and stderr are named in the script's directives."""
    within: str | None = None
    """Job to run in as a step, in place of submitting one."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has, as Slurm counts it."""

    name: str
    state: str
    """Slurm's words, small: idle, mixed, allocated, down, drained, ... with what follows a `+`."""
    reason: str = ""
    """Why it is down or drained; an administrator's words are never undone."""
    cpus: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    """As the site calls them; a site need not call them anything."""

    @property
    def usable(self) -> bool:
        return not any(word in self.state for word in ("down", "drain", "fail", "maint", "unknown", "not_responding"))


@dataclass(frozen=True, slots=True)
class Partition:
    """None where the site sets no limit, or does not say."""

    name: str
    up: bool
    nodes: frozenset[str]
    default: bool = False
    max_seconds: int | None = None
    max_nodes: int | None = None
    accounts: frozenset[str] | None = None
    """Those allowed; None for all."""
    qos: frozenset[str] | None = None
    """Those allowed; None for all."""


@dataclass(frozen=True, slots=True)
class Site:
    """What can be asked for: read seldom, used to check a template before it is submitted and to explain."""

    version: str
    """Slurm's, such as 22.05.8; `local` for the local driver."""
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]


class JobIds(list[str]):
    """Ids that Slurm gave to what was submitted: they count, whatever else it says."""

    complaint: str = ""
    """Complaint that came with them, such as `sbatch ended with exit code 1: ...`; empty where all went well."""


class Driver(Protocol):
    name: str
    """Shown by doctor: local, cli, slurmrestd, pyslurm."""

    async def snapshot(self) -> Snapshot:
        """Every job of ours (name with our prefix), ended ones too as long as Slurm remembers, tasks of arrays one by one.

        Raises SlurmUnreachable, also for an answer that cannot be read.
        """
        ...

    async def submit(self, script: BatchScript) -> list[str]:
        """The job's id, or those of the tasks in order where the script asks for an array; JobIds where it complains too.

        Raises SubmitRefused with Slurm's words, SlurmUnreachable when it is not known whether it was taken.
        """
        ...

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        """End jobs (`scancel`), or send a signal to them. An unknown or ended id is no error. Raises SlurmUnreachable."""
        ...

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        """How jobs ended that Slurm's own memory has lost; what accounting does not know is left out.

        Empty where a site keeps no accounting. Raises SlurmUnreachable.
        """
        ...

    async def site(self) -> Site:
        """Raises SlurmUnreachable."""
        ...

    async def close(self) -> None: ...
