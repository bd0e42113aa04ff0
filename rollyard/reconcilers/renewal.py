"""Times at which allocations are replaced, so that a successor is ready before the walltime ends. Pure.

An allocation ends at `end`. Its successor has to be submitted by `end - lead`. `lead` is `before_expiry` plus the
expected time from submit to ready. At most `maxSurge` successors may exist beside the allocations that they replace. So
if several allocations end at about the same time, they are renewed in groups of `maxSurge`. The first group is renewed
so early that the last group is still in time. A successor that is ready early serves beside the old allocation until
the old allocation's retire time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.planned_successor import PlannedSuccessor
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.values.quantity import walltime_seconds

BEFORE_EXPIRY_SECONDS = 900
STARTUP_GUESS_SECONDS = 30.0
"""Start-up time that is assumed until one has been measured."""
STARTUP_SHARE = 0.25
MAX_EARLY_SHARE = 0.5
"""Limits of the start-up time and of `before_expiry`, as shares of the walltime. After one long wait in the queue the
measured start-up time is long. Without these limits an allocation would be renewed as soon as the allocation runs."""
MIN_LEFT_SECONDS = 20
"""Last seconds of a job, which are kept free for handing back work. New work must be able to end before them."""
MARGIN_SECONDS = MIN_LEFT_SECONDS + 10
"""Seconds that the default of `before_expiry` adds to what new work needs: the successor is ready 10 s before the
last moment at which its predecessor gets new work."""


def before_expiry(pool: Pool) -> float:
    """Seconds before the end of the walltime at which a successor should be ready."""
    seconds: float | None = pool.spec.renewal.before_expiry_seconds
    if seconds is None:
        seconds = pool.spec.planned_seconds + MARGIN_SECONDS if isinstance(pool, RolloutPool) else BEFORE_EXPIRY_SECONDS
    return min(float(seconds), MAX_EARLY_SHARE * walltime_seconds(pool.spec.allocation.time_limit))


def startup_seconds(pool: Pool) -> float:
    """Expected seconds from submit to ready: the measured time, or else a guess; at most STARTUP_SHARE of the
    walltime."""
    known = pool.status.startup_seconds
    longest = STARTUP_SHARE * walltime_seconds(pool.spec.allocation.time_limit)
    return min(STARTUP_GUESS_SECONDS if known is None else known, longest)


class RenewalTime(NamedTuple):
    """Times at which one allocation is replaced (Unix seconds)."""

    submit_at: float
    """Time to submit the successor."""
    retire_at: float
    """Time to end the allocation if its successor is ready: `before_expiry` before the end of the walltime, or earlier
    if another successor needs one of the `maxSurge` places."""


def renewal_times(pool: Pool, ends: Sequence[float]) -> list[RenewalTime]:
    """Return the renewal time of each allocation. `ends`: the ends of the allocations' walltimes, in ascending order.

    A successor uses one of the `maxSurge` places for the start-up time. If there are so many allocations that their
    groups would not fit into one walltime, a shorter time is assumed for each successor.
    """
    before, start, surge = before_expiry(pool), startup_seconds(pool), pool.spec.renewal.max_surge
    room = walltime_seconds(pool.spec.allocation.time_limit) - before - start
    due = due_times(ends, before + start, min(start, room * surge / max(1, len(ends))), surge)
    return [RenewalTime(due[i], min([end - before, *due[i + surge :][:1]])) for i, end in enumerate(ends)]


def planned_successors(pool: Pool, allocations: Iterable[Allocation]) -> list[PlannedSuccessor]:
    """Return the successors that are still to be submitted. `allocations`: of the pool."""
    present = [a for a in allocations if not a.status.is_ended]
    replaced = {a.spec.successor_of for a in present}
    running = sorted(
        (a.status.end_time.timestamp(), a.metadata.name)
        for a in present
        if a.status.job_state == JobState.RUNNING and a.status.end_time is not None and not a.spec.drain
    )
    if pool.spec.allocation.within is not None or pool.spec.suspend:
        return []
    holder, times = surge_holder(pool, present), renewal_times(pool, [end for end, _ in running])
    return [
        _planned(pool.metadata.namespace, name, time, holder)
        for (_, name), time in zip(running, times, strict=True)
        if name not in replaced
    ]


def _planned(namespace: str, name: str, time: RenewalTime, holder: Allocation | None) -> PlannedSuccessor:
    """`holder`: successor of another allocation that has to start first."""
    expected = holder.status.start_time if holder is not None else None
    if holder is None or (expected is not None and expected.timestamp() <= time.submit_at):
        return PlannedSuccessor(
            namespace=namespace, allocation=name, waits_for=None, submit_at=time.submit_at, take_over_at=time.retire_at
        )
    return PlannedSuccessor(
        namespace=namespace,
        allocation=name,
        waits_for=holder.metadata.name,
        submit_at=expected.timestamp() if expected is not None else None,
        take_over_at=None,
    )


def surge_holder(pool: Pool, allocations: Iterable[Allocation]) -> Allocation | None:
    """Return the pending successor that takes the last place of `maxSurge`, the first one to start; None if there is a free
    place, or if no such successor is pending. `allocations`: of the pool."""
    present = {a.metadata.name: a for a in allocations if not a.status.is_ended}
    successors = [a for a in present.values() if a.spec.successor_of in present]
    pending = [a for a in successors if a.status.job_state == JobState.PENDING]
    if len(successors) < pool.spec.renewal.max_surge:
        return None
    return min(
        pending, key=lambda a: a.status.start_time.timestamp() if a.status.start_time else math.inf, default=None
    )


def due_times(ends: Sequence[float], lead: float, round_seconds: float, surge: int) -> list[float]:
    """Times to submit the successor of each allocation, for ends in ascending order.

    A successor uses one of `surge` places for `round_seconds`. So the i-th successor must be submitted that long before
    the (i + surge)-th one needs the place: due[i] = min(end[i] - lead, due[i + surge] - round_seconds).
    """
    due = [end - lead for end in ends]
    for i in range(len(due) - 1 - surge, -1, -1):
        due[i] = min(due[i], due[i + surge] - round_seconds)
    return due


def can_take_work(pool: Pool, ends: float, now: float) -> bool:
    """Whether an allocation whose walltime ends at `ends` can still take new work."""
    need = pool.spec.planned_seconds if isinstance(pool, RolloutPool) else 0.0
    return ends - now > need + MIN_LEFT_SECONDS


def learn_startup(
    known: float | None, known_until: float | None, seen: Iterable[tuple[float, float]]
) -> tuple[float | None, float | None]:
    """Update the start-up time from new measurements: (ready at, seconds from submit to ready) of each allocation.

    `known_until`: Unix seconds of the newest measurement that `known` includes. Return the new values of both.
    A longer time counts immediately; a shorter time counts by half of the difference. An early successor costs little,
    but a late successor leaves a gap.
    """
    for ready_at, seconds in sorted(seen):
        if known_until is not None and ready_at <= known_until:
            continue
        known = seconds if known is None else max(seconds, (known + seconds) / 2)
        known_until = ready_at
    return known, known_until
