"""States of Slurm's jobs."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job, by Slurm's name (man squeue, JOB STATE CODES)."""

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
    GONE = "GONE"
    """A state of our own: complete listings no longer show the job, and its end is unknown."""

    @classmethod
    def read(cls, word: str) -> JobState:
        """Parse Slurm's word; additions are ignored (`CANCELLED by 1000`). An unknown state counts as running."""
        first = word.split()[0].rstrip("+") if word.split() else ""
        return cls.__members__.get(_SYNONYMS.get(first, first), cls.RUNNING)

    @property
    def ended(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


_SYNONYMS = {
    "CONFIGURING": "PENDING",  # the job's nodes are being booted
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
"""Rare state or state flag that squeue shows -> state that it counts as."""
