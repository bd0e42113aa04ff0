"""What a Slurm driver does. Absence from a complete snapshot means "not there"; a failed snapshot means nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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

    @property
    def ended(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    name: str
    comment: str
    state: JobState
    reason: str = ""
    node: str = ""
    restart_count: int = 0
    exit_code: int | None = None
    submit_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    """When it ended or, while it runs, when its walltime ends. All times are Unix seconds."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs of ours that Slurm knows, as of one moment."""

    taken_at: float
    """Unix seconds when the look-up began: what was submitted before and is not here is not there."""
    jobs: Mapping[str, Job]

    def by_comment(self, comment: str) -> list[Job]:
        return [j for j in self.jobs.values() if j.comment == comment]


@dataclass(frozen=True, slots=True)
class BatchScript:
    """What is submitted. `text` is a complete sbatch script, `#SBATCH` lines included; every driver takes the same text."""

    name: str
    comment: str
    text: str
    directory: str
    """Working folder; stdout and stderr are named in the script's directives."""


class Driver(Protocol):
    name: str
    """Shown by doctor: local, cli, ..."""

    async def snapshot(self) -> Snapshot:
        """Every job whose name starts with our prefix, ended ones too as long as Slurm remembers. Raises SlurmUnreachable."""
        ...

    async def submit(self, script: BatchScript) -> str:
        """The job id. Raises SubmitRefused with Slurm's words, SlurmUnreachable when it is not known whether it was taken."""
        ...

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        """End jobs (`scancel`), or send a signal to them. An unknown or ended id is no error. Raises SlurmUnreachable."""
        ...

    async def close(self) -> None: ...
