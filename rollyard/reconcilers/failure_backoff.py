"""Numbers of a pool's failures and interruptions in a row, and the back-off that follows. Pure.

A failure is an end caused by the template, or by a submit that Slurm refused. A failure counts only if its allocation
was made after the last counted failure. So if allocations that run side by side fail, they count once. The count
restarts after an allocation has been ready for STEADY_SECONDS, and with a new template. While the count is 0, the
next failure counts even if its allocation was made before the last counted failure.

All times are by this server's clock. A time in the future (the clock was set back) counts as now: otherwise later ends
would never count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rollyard.core.exit_codes import LASTING_EXIT
from rollyard.kinds.allocation import Allocation, AllocationStatus
from rollyard.kinds.base import get_condition
from rollyard.kinds.pool import PoolStatus
from rollyard.kinds.values.job_state import JobState

FAILURES = {JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.COMPLETED}
"""States of allocations that ended because of the template, or because Slurm refused the submit."""
INTERRUPTIONS = {
    JobState.NODE_FAIL,
    JobState.BOOT_FAIL,
    JobState.CANCELLED,
    JobState.DEADLINE,
    JobState.REVOKED,
    JobState.GONE,
}
"""States of allocations that ended because of a node, an administrator or a user, or for an unknown reason (GONE). The end
of the walltime and a preemption are normal and are not counted."""
BACKOFF_CAP_SECONDS = 60.0
IDLE_CAP_SECONDS = 15.0
"""Limit of the back-off while no allocation of the pool serves. The limit is lower, so that the pool soon notices that
the cause has passed. The limit of the back-off after a job that never ran on its node (see LAUNCH_SECONDS) is
always BACKOFF_CAP_SECONDS."""
LAUNCH_SECONDS = 15.0
"""First back-off after a job that got a node and never ran there. Slurm drains a node whose prolog fails. If the prolog
fails on every node, a pool without this back-off would soon have caused the drain of all nodes."""
LASTING_CAP_SECONDS = 120.0
"""Limit of the back-off after a failure that stays until somebody changes something (LASTING_EXIT). It begins with
LAUNCH_SECONDS, also while no allocation of the pool serves."""
STEADY_SECONDS = 10.0
"""If an allocation is ready for this many seconds, this is a success: the failures in a row are counted from 0 again. The
failure of an allocation that was ready for a shorter time adds to them."""
FORGET_FAILURES_SECONDS = 60.0
"""Failures are forgotten once the last failure is this many seconds ago and all allocations are ready."""


@dataclass(frozen=True, slots=True)
class EndCounts:
    """Numbers of allocations that ended too early."""

    template: str = ""
    """Hash of the template to which `failures` belongs."""
    failures: int = 0
    """Number of failures of this template in a row."""
    last_failure: float | None = None
    """Unix seconds of the last counted failure. A new template does not change this time."""
    interruptions: int = 0
    """Number of interruptions in a row, of any template."""
    last_interruption: float | None = None
    """Unix seconds of the last counted interruption."""
    failing: bool = False
    """True: allocations of the template failed, and none of this template has become ready since."""
    backoff_cap: float = BACKOFF_CAP_SECONDS
    lasting: bool = False
    """True: the last failure stays until somebody changes something."""
    first_backoff: bool = False
    """True: the last interrupted allocation got a node and never ran there."""

    @property
    def next_at(self) -> float:
        """End of the back-off (Unix seconds); 0.0 if there is none."""
        failed = self._after_failure
        if self.first_backoff:
            return max(
                failed, _backoff_until(self.last_interruption, self.interruptions, BACKOFF_CAP_SECONDS, LAUNCH_SECONDS)
            )
        # The first interruption has no back-off, because the cause of an interruption usually passes.
        return max(failed, _backoff_until(self.last_interruption, self.interruptions - 1, self.backoff_cap))

    @property
    def is_interrupted(self) -> bool:
        """Whether interruptions cause a longer back-off than failures do."""
        return self.next_at > self._after_failure

    @property
    def _after_failure(self) -> float:
        if self.lasting:
            return _backoff_until(self.last_failure, self.failures, LASTING_CAP_SECONDS, LAUNCH_SECONDS)
        return _backoff_until(self.last_failure, self.failures, self.backoff_cap)


def count_ends(
    status: PoolStatus, template: str, allocations: Sequence[Allocation], now: float, *, serves: bool, all_ready: bool
) -> EndCounts:
    """Add the allocations that have ended since the last count. `serves`: some allocation serves. `all_ready`: every
    active allocation is ready."""
    own = [a for a in allocations if a.spec.template_hash == template]
    last, last_outside = _past(status.last_failure_time, now), _past(status.last_interruption_time, now)
    failures = status.failures if status.template_hash == template and not _had_steady_run(own, last, now) else 0
    outside = 0 if _had_steady_run(allocations, last_outside, now) else status.interruptions
    if all_ready and last is not None and now - last > FORGET_FAILURES_SECONDS:
        failures = 0
    failures, last = _count_new(failures, last, (a for a in own if a.status.job_state in FAILURES), now)
    ended = (a for a in allocations if a.status.job_state in INTERRUPTIONS)
    outside, last_outside = _count_new(outside, last_outside, ended, now)
    ready = max((a.status.ready_at.timestamp() for a in own if a.status.ready_at is not None), default=None)
    failing = failures > 0 and last is not None and (ready is None or ready <= last)
    cap = BACKOFF_CAP_SECONDS if serves else IDLE_CAP_SECONDS
    interrupted, failed = last_ended(allocations, INTERRUPTIONS), last_ended(own, FAILURES)
    lasting = failed is not None and failed.status.exit_code == LASTING_EXIT
    launch = (
        outside > 0 and interrupted is not None and bool(interrupted.status.node) and not interrupted.status.binding
    )
    return EndCounts(template, failures, last, outside, last_outside, failing, cap, lasting, launch)


def last_ended(
    allocations: Iterable[Allocation], states: Collection[str], template: str | None = None
) -> Allocation | None:
    """Return the allocation that ended last in one of these states, among those that we did not drain or delete; None
    if there is none."""
    found = [
        a
        for a in allocations
        if a.status.job_state in states and not _was_expected(a) and template in (None, a.spec.template_hash)
    ]
    return max(found, key=lambda a: (_unix(a.status.end_time) or 0.0, a.spec.index), default=None)


def _count_new(count: int, last: float | None, ended: Iterable[Allocation], now: float) -> tuple[int, float | None]:
    """Count ends in order of time. Return (count, Unix seconds of the last counted end).

    An end counts if it is later than the last counted end. Unless the count is 0, its allocation must also have been
    made after the last counted end.
    """
    ends = sorted((end, _made_at(a)) for a in ended if (end := _past(a.status.end_time, now)) and not _was_expected(a))
    for end, made in ends:
        if last is None or (end > last and (made > last or count == 0)):
            count, last = count + 1, end
    return count, last


def _had_steady_run(allocations: Sequence[Allocation], since: float | None, now: float) -> bool:
    """Whether an allocation first became ready after `since`, and was ready for at least STEADY_SECONDS."""
    return any(
        (first := _unix(a.status.ready_at)) is not None
        and first > (since or 0.0)
        and _ready_seconds(a.status, first, now) >= STEADY_SECONDS
        for a in allocations
    )


def _ready_seconds(status: AllocationStatus, first: float, now: float) -> float:
    """Return the length of the present readiness. If the allocation is not ready: the time from `first`, when it became
    ready for the first time, to the end of its last readiness."""
    condition = get_condition(status.conditions, "Ready")
    changed = condition.last_transition_time.timestamp() if condition is not None else first
    if status.ready:
        return now - changed
    end = (_unix(status.end_time) if status.is_ended else None) or now
    return (end if condition is None else min(changed, end)) - first


def _was_expected(allocation: Allocation) -> bool:
    return allocation.spec.drain or allocation.metadata.deletion_timestamp is not None


def _made_at(allocation: Allocation) -> float:
    return _unix(allocation.metadata.creation_timestamp) or float("inf")


def _past(time: datetime | None, now: float) -> float | None:
    return min(time.timestamp(), now) if time is not None else None


def _unix(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _backoff_until(last: float | None, times: int, cap: float, first: float = 1.0) -> float:
    if times < 1 or last is None:
        return 0.0
    return last + min(cap, first * 2.0 ** min(times - 1, 10))  # 2.0 ** 1024 raises OverflowError
