"""Protocol and data of a Slurm driver.

A failed listing proves nothing about jobs. A job that a complete listing lacks has probably ended; the
reconcilers also look at heartbeats and accounting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from rollyard.kinds.values.job_state import JobState

LIMIT_SECONDS = 30.0
"""Time limit of one command or request to Slurm. If slurmctld is down, every command takes 9 s before it fails."""


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
    """Start of the job. While the job is pending: Slurm's estimate, or None."""
    end_time: float | None = None
    """End of the job. While the job runs: the end of its walltime. All times are in Unix seconds."""
    cancelled_by: str = ""
    """User who cancelled the job, if accounting names one: `uid 0 (root)`, or a user's name."""

    @property
    def owner(self) -> str:
        """Key of the job's Allocation: the comment; for a task of an array, the comment, `/` and the index of the task."""
        _, underscore, task = self.id.partition("_")
        return f"{self.comment}/{task}" if underscore else self.comment


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Counts of accounting for one run of a job, which has several if it is requeued. Times are Unix seconds; None: the run
    has not started, or not ended."""

    name: str
    submitted: float | None
    start: float | None
    end: float | None
    cpus: int
    gpus: int


@dataclass(frozen=True)
class JobListing:
    """State of all our jobs that Slurm knows, at one moment."""

    taken_at: float
    """Time at which the query began (Unix seconds). A job that was submitted later may be missing."""
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
    """Id of the job in which the script runs as a step; None to submit a new job."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's resources, as Slurm counts them."""

    name: str
    state: str
    """Slurm's state in lower case, such as idle, mixed, allocated, down or drained. Flags follow after `+`."""
    reason: str = ""
    """Reason why the node is down or drained. Rollyard never changes it."""
    cpus: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    features: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    """Names of the GPU types, as the site defines them; empty if the site defines none."""

    @property
    def usable(self) -> bool:
        return not any(word in self.state for word in ("down", "drain", "fail", "maint", "unknown", "not_responding"))


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. A value is None if the site sets no limit, or does not publish the limit."""

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
    """Resources of the cluster. They are read rarely: to check a template before a submit, and to explain why jobs wait."""

    version: str
    """Slurm's version, such as 22.05.8; `local` for the local driver."""
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]


class JobIds(list[str]):
    """Ids of submitted jobs. The ids are valid even if Slurm's answer also contains a complaint."""

    complaint: str = ""
    """Complaint in Slurm's answer, such as `sbatch ended with exit code 1: ...`; empty if there was none."""


class Driver(Protocol):
    name: str
    """Name that `rollyard doctor` shows: local, cli, slurmrestd, pyslurm."""

    async def list_jobs(self) -> JobListing:
        """List all our jobs: the jobs whose names have our prefix. Each task of an array is listed as a job.

        Ended jobs are included as long as Slurm knows them. Raises SlurmUnreachable if there is no answer, or if the answer
        cannot be read.
        """

    async def submit(self, script: BatchScript) -> list[str]:
        """Submit a job; return a list with its id. For an array, return the ids in order of the tasks.

        A driver that notices complaints of Slurm about an accepted job returns a `JobIds`.

        Raises SubmitRefused with Slurm's message, and SlurmUnreachable if Slurm did not answer. After SlurmUnreachable
        the job may exist.
        """

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        """End jobs (`scancel`), or send a signal to them. Unknown and ended jobs are skipped without an error. Raises
        SlurmUnreachable, and SlurmError if Slurm refuses."""

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        """Look up jobs in accounting, after slurmctld has forgotten them. Jobs unknown to accounting are left out.

        The result is empty if the site keeps no accounting. Raises SlurmUnreachable.
        """

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        """Return what accounting has counted for the runs of jobs, oldest first. Jobs unknown to accounting are left out.

        None: no accounts are kept. Raises SlurmUnreachable.
        """

    async def site(self) -> Site:
        """Read the cluster's resources. Raises SlurmUnreachable."""

    async def close(self) -> None: ...
