"""Protocol and data of a Slurm driver. A job that a complete snapshot omits is gone; a failed snapshot proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from rollyard.kinds.values.job_state import JobState

LIMIT_SECONDS = 30.0
"""Time limit of one call to Slurm. If slurmctld is down, every command takes 9 s before it fails."""


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
    """Slurm's estimate while the job is pending, if there is one."""
    end_time: float | None = None
    """End of the job. While it runs: the end of its walltime. All times are Unix seconds."""
    cancelled_by: str = ""
    """User who cancelled the job, if accounting names one: `uid 0 (root)`, or a user's name."""

    @property
    def owner(self) -> str:
        """Key by which the job's Allocation is found: the comment and, for a task of an array, `/` and its index."""
        _, underscore, task = self.id.partition("_")
        return f"{self.comment}/{task}" if underscore else self.comment


@dataclass(frozen=True)
class Snapshot:
    """All our jobs that Slurm knows, at one moment."""

    taken_at: float
    """Unix seconds at which the query began. A job that was submitted before and is not listed does not exist."""
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
    """A job to submit. `text` is a complete sbatch script with its `#SBATCH` lines; every driver takes the same text."""

    name: str
    comment: str
    text: str
    directory: str
    """Working folder. The script's directives name the files for stdout and stderr."""
    within: str | None = None
    """Job in which this runs as a step; None to submit a job."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's resources, as Slurm counts them."""

    name: str
    state: str
    """Slurm's words in lower case: idle, mixed, allocated, down, drained, ... Additions follow after a `+`."""
    reason: str = ""
    """Reason why the node is down or drained. An administrator's reason is never removed."""
    cpus: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    """GPU types by the site's names; a site may have no names."""

    @property
    def usable(self) -> bool:
        return not any(word in self.state for word in ("down", "drain", "fail", "maint", "unknown", "not_responding"))


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. A value is None if the site sets no limit, or does not publish it."""

    name: str
    up: bool
    nodes: frozenset[str]
    default: bool = False
    max_seconds: int | None = None
    max_nodes: int | None = None
    accounts: frozenset[str] | None = None
    """Accounts that may use the partition; None for all."""
    qos: frozenset[str] | None = None
    """QOS that may use the partition; None for all."""


@dataclass(frozen=True, slots=True)
class Site:
    """Resources of the cluster. They are read rarely, to check a template before its submit and to explain delays."""

    version: str
    """Slurm's version, such as 22.05.8; `local` for the local driver."""
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]


class JobIds(list[str]):
    """Ids that Slurm gave to the submitted jobs. They are valid even if a complaint came with them."""

    complaint: str = ""
    """Complaint that came with the ids, such as `sbatch ended with exit code 1: ...`; empty if there was none."""


class Driver(Protocol):
    name: str
    """Name that doctor shows: local, cli, slurmrestd, pyslurm."""

    async def snapshot(self) -> Snapshot:
        """List all our jobs (name with our prefix), also ended ones that Slurm still knows, and tasks of arrays one by
        one.

        Raises SlurmUnreachable, also for an answer that cannot be read.
        """
        ...

    async def submit(self, script: BatchScript) -> list[str]:
        """Submit; return the job's id, or an array's ids in order of the tasks; JobIds if a complaint came with them.

        Raises SubmitRefused with Slurm's words, SlurmUnreachable if it is unknown whether the job was accepted.
        """
        ...

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        """End jobs (`scancel`), or send a signal to them. An unknown or ended id is no error. Raises SlurmUnreachable."""
        ...

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        """Look up in accounting how jobs ended that slurmctld has forgotten. Jobs unknown to accounting are left out.

        Empty if the site keeps no accounting. Raises SlurmUnreachable.
        """
        ...

    async def site(self) -> Site:
        """Read the cluster's resources. Raises SlurmUnreachable."""
        ...

    async def close(self) -> None: ...
