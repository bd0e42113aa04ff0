"""Reason why jobs of a pool wait in Slurm's queue. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Reason
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.values.slurm_reasons import PendingReason


def pending_reason(allocations: Sequence[Allocation]) -> Reason | None:
    """Most frequent reason (Slurm's word) why jobs of a pool wait; None if no job waits.

    Example of a message: `3 of 8 jobs pending: QOSMaxGRESPerUser (the QOS allows a user no more GPUs or other gres)`.
    """
    live = [a for a in allocations if not a.status.is_ended]
    pending = [a for a in live if a.status.job_state == JobState.PENDING]
    if not pending:
        return None
    reasons = Counter(a.status.pending_reason.word for a in pending)
    words = ", ".join(_count_text(name, count, len(reasons)) for name, count in reasons.most_common())
    starts = [a.status.start_time for a in pending if a.status.start_time is not None]
    expected = f"; the first is expected to start at {min(starts):%Y-%m-%d %H:%M:%S} UTC" if starts else ""
    return Reason(reasons.most_common(1)[0][0], f"{len(pending)} of {len(live)} jobs pending: {words}{expected}")


def _count_text(name: str, count: int, kinds: int) -> str:
    return f"{f'{count} ' if kinds > 1 else ''}{PendingReason(name)}"
