"""Text about the end of a job: first the known facts, then the job's last output, labelled as output. Pure.

The text does not guess the cause. Known facts are the signal or exit code, our own action with its reason, and Slurm's
state with the user that Slurm names. If a job was cancelled and Slurm names no user, the text calls the user unknown. A
line of a log is shown as the cause only if our own process logged it as the reason for its exit. Any other line may be
about something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.core.exit_codes import exit_code_text
from rollyard.kinds.allocation import DRAINED_BY, Allocation
from rollyard.kinds.base import Reason
from rollyard.kinds.registry import Pool
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.plan import template_hash

SHORT_CHARS = 120
"""Greatest length of a text in tables and in conditions of pools."""
LONG_CHARS = 1_000
RECENT_SECONDS = 5.0
"""Output that the job wrote more than this many seconds before its end is not shown."""
_SHORT_STATES = {"", "None", "NonZeroExitCode"}
"""Slurm's reasons that add nothing to the exit code."""
_STATES: dict[str, str] = {
    JobState.TIMEOUT: "its walltime ended (TIMEOUT)",
    JobState.PREEMPTED: "Slurm preempted it (PREEMPTED)",
    JobState.OUT_OF_MEMORY: "it used more memory than Slurm allows (OUT_OF_MEMORY)",
    JobState.BOOT_FAIL: "its node did not boot (BOOT_FAIL)",
    JobState.DEADLINE: "its deadline passed (DEADLINE)",
    JobState.REVOKED: "Slurm revoked it (REVOKED)",
    JobState.GONE: "Slurm no longer knows it, and its end is not known",
}


FROM_OUTSIDE = {
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.DEADLINE,
    JobState.REVOKED,
}
"""States of jobs that ended because of Slurm, an administrator, a user or ourselves, whatever ran in them. A node that
failed is not among them: what ran on it may be the cause."""


@dataclass(frozen=True, slots=True)
class LastOutput:
    """The last line that a job wrote."""

    text: str
    before: float = 0.0
    """Seconds from this line to the end of the job."""
    is_exit_reason: bool = False
    """Whether the line is the reason that our own process gave for its exit."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """Known facts about the end of a job."""

    state: str
    exit_code: int | None = None
    """Exit code as a shell shows it: 128 + n for signal n."""
    slurm_reason: str = ""
    node: str = ""
    by_us: str = ""
    """Our reason for ending the job; empty if we did not end it."""
    requeued: int = 0
    """Slurm's restart count, if Slurm requeued the job after its process had registered; otherwise 0. Rollyard ends the
    new run, because the work has gone to other jobs."""
    cancelled_by: str = ""
    """User who cancelled the job according to Slurm, such as `uid 0 (root)`."""
    output: LastOutput | None = None


def short_text(end: JobEnd) -> str:
    """Return one line about the end. The line includes the job's output only if no other fact explains the end."""
    found = _certain_text(end)
    if end.output is not None and (
        not (end.by_us or end.requeued) and end.state in (JobState.FAILED, JobState.COMPLETED)
    ):
        found = f"{found}{_output_text(end.output)}"
    return one_line(found, SHORT_CHARS)


def long_text(end: JobEnd) -> str:
    """Return one line with all known facts about the end, and the last output."""
    found = _certain_text(end)
    # In two cases Slurm's reason would mislead, so it is left out. A job that was cancelled while it waited keeps its
    # reason for waiting. A job that a signal killed (exit code above 128) has the reason JobLaunchFailure.
    if end.slurm_reason not in _SHORT_STATES and end.state != JobState.CANCELLED and (end.exit_code or 0) <= 128:
        found = f"{found}; Slurm's reason: {end.slurm_reason}"
    tail = (
        _output_text(end.output) if end.output is not None else f"; it wrote nothing in its last {RECENT_SECONDS:g} s"
    )
    return one_line(f"{found}{tail}", LONG_CHARS)


def one_line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def why_ended(allocation: Allocation, pool: Pool | None, siblings: Sequence[Allocation]) -> Reason:
    """Reason why we decided to drain or delete an allocation."""
    name = allocation.metadata.name
    if pool is None or pool.metadata.deletion_timestamp is not None:
        return Reason("PoolDeleted", "its pool is deleted")
    if pool.spec.suspend:
        return Reason("Suspended", "its pool is suspended")
    if (who := allocation.metadata.annotations.get(DRAINED_BY)) is not None:
        return Reason("DrainedByHand", f"drained by {who}")
    successor = next((a.metadata.name for a in siblings if a.spec.successor_of == name), None)
    if successor is not None:
        return Reason("Replaced", f"replaced by {successor}")
    if allocation.spec.template_hash != template_hash(pool):
        return Reason("OutOfDate", "its template is out of date")
    if allocation.spec.drain:
        return Reason("GivenBack", "given back: its pool needs fewer allocations")
    return Reason("Deleted", "its allocation was deleted")


def _certain_text(end: JobEnd) -> str:
    code = exit_code_text(end.exit_code) if end.exit_code else ""
    if end.requeued:
        return f"requeued, not by Rollyard (restart {end.requeued}); that run was ended, because its work has moved"
    if end.by_us and end.state in (JobState.CANCELLED, JobState.COMPLETED):
        return f"ended by Rollyard: {end.by_us}"
    while_leaving = f", while Rollyard was ending it ({end.by_us})" if end.by_us else ""
    if end.state == JobState.CANCELLED:
        by = f" by {end.cancelled_by}, not by Rollyard" if end.cancelled_by else ", not by Rollyard; by whom is unknown"
        return f"cancelled{by}{while_leaving}"
    if end.state == JobState.NODE_FAIL:
        return f"NODE_FAIL{f' on node {end.node}' if end.node else ''}{while_leaving}"
    if end.state in _STATES:
        return f"{_STATES[end.state]}{while_leaving}"
    if end.state == JobState.COMPLETED:
        return "exit code 0, cause unknown"
    if end.exit_code is None or end.exit_code == 0:
        return f"{end.state}{f': {end.slurm_reason}' if end.slurm_reason not in _SHORT_STATES else ''}{while_leaving}"
    whom = ", sender unknown" if code.startswith("killed") and not end.by_us else ""
    return f"{code}{whom}{while_leaving}"


def _output_text(output: LastOutput) -> str:
    if output.is_exit_reason:
        return f": {output.text}"
    before = max(0.0, output.before)
    when = f"{before:.0f} s before the end" if before >= 0.5 else "at the end"
    return f"; its last output, {when}: {output.text}"
