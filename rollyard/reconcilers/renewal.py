"""Times at which allocations are replaced, so that a successor is ready before the walltime ends. Pure.

The successor of an allocation that ends at `end` has to be submitted by `end - lead`. `lead` includes the time that
recent allocations of this pool took from submit to ready. At most `maxSurge` successors may exist beside the
allocations that they replace. So if several allocations end at about the same time, they are renewed one after the
other, and the first one early enough. A successor that is ready early serves beside the allocation that it replaces,
until that one's retire time, or until another successor needs its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.quantity import walltime_seconds

BEFORE_EXPIRY_SECONDS = 900
MARGIN_SECONDS = 10
"""Seconds in addition to the budgets: an allocation stops taking work slightly before the budgets no longer fit."""
STARTUP_GUESS_SECONDS = 30.0
"""Start-up time before one was measured."""
STARTUP_SHARE = 0.25
MAX_EARLY_SHARE = 0.5
"""Greatest lead as a share of the walltime. After one long wait in the queue the lead may be long; without this limit
an allocation would be renewed as soon as it runs."""
MIN_LEFT_SECONDS = 20.0
"""Seconds from the order to drain to the end of the job, in which it hands back its work."""


def before_expiry(pool: Pool) -> float:
    """Seconds before the end of the walltime at which a successor should be ready."""
    seconds = pool.spec.renewal.before_expiry_seconds
    if seconds is None:
        seconds = pool.spec.budget_seconds + MARGIN_SECONDS if isinstance(pool, RolloutPool) else BEFORE_EXPIRY_SECONDS
    return min(float(seconds), MAX_EARLY_SHARE * walltime_seconds(pool.spec.allocation.time_limit))


def startup_seconds(pool: Pool) -> float:
    """Expected seconds from submit to ready: measured, else a guess."""
    known = pool.status.startup_seconds
    longest = STARTUP_SHARE * walltime_seconds(pool.spec.allocation.time_limit)
    return min(STARTUP_GUESS_SECONDS if known is None else known, longest)


class RenewalTime(NamedTuple):
    """Times at which one allocation is replaced (Unix seconds)."""

    submit_at: float
    """Time to submit its successor."""
    retire_at: float
    """Time for the allocation to go if its successor is ready. It is earlier if another successor needs its place."""


def renewal_times(pool: Pool, ends: Sequence[float]) -> list[RenewalTime]:
    """Renewal times for ends in ascending order. Rounds are shortened so that no allocation is replaced before it runs."""
    before, start, surge = before_expiry(pool), startup_seconds(pool), pool.spec.renewal.max_surge
    room = walltime_seconds(pool.spec.allocation.time_limit) - before - start
    due = due_times(ends, before + start, min(start, room * surge / max(1, len(ends))), surge)
    return [RenewalTime(due[i], min([end - before, *due[i + surge :][:1]])) for i, end in enumerate(ends)]


def due_times(ends: Sequence[float], lead: float, round_seconds: float, surge: int) -> list[float]:
    """Times to submit the successor of each allocation, for ends in ascending order.

    A successor uses one of `surge` places for `round_seconds`. So the i-th one must begin before the (i + surge)-th one
    needs its place: due[i] = min(end[i] - lead, due[i + surge] - round_seconds).
    """
    due = [end - lead for end in ends]
    for i in range(len(due) - 1 - surge, -1, -1):
        due[i] = min(due[i], due[i + surge] - round_seconds)
    return due


def can_take_work(pool: Pool, ends: float, now: float) -> bool:
    """Whether an allocation whose walltime ends at `ends` can still take new work."""
    need = float(pool.spec.budget_seconds) if isinstance(pool, RolloutPool) else 0.0
    return ends - now > need + MIN_LEFT_SECONDS


def learn_startup(
    known: float | None, known_until: float | None, seen: Iterable[tuple[float, float]]
) -> tuple[float | None, float | None]:
    """Update the start-up time from new measurements: (ready at, seconds from submit to ready) of each allocation.

    It rises at once and falls by half of the difference, because being early costs little and being late leaves a gap.
    """
    for ready_at, seconds in sorted(seen):
        if known_until is not None and ready_at <= known_until:
            continue
        known = seconds if known is None else max(seconds, (known + seconds) / 2)
        known_until = ready_at
    return known, known_until
