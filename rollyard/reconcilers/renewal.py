"""When an allocation must be replaced so that a successor is ready before its walltime ends. Pure.

The successor of one that ends at `end` has to be submitted by `end - lead`, and `lead` holds the time that allocations of
this pool lately took from submit to ready. Only so many successors may stand beside what they replace, so when several end
at about the same time they are renewed one after the other, and the first of them early enough. A successor that is ready
early works beside the one that it replaces, until that one's time has come or its place is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.quantity import walltime_seconds

BEFORE_EXPIRY_SECONDS = 900
MARGIN_SECONDS = 10
"""Beside the budgets: an allocation takes nothing new a little before they no longer fit."""
STARTUP_GUESS_SECONDS = 30.0
"""Until the first one was measured."""
STARTUP_SHARE = 0.25
MAX_EARLY_SHARE = 0.5
"""Of the walltime: a limit shorter than the lead, as after one long wait in the queue, would otherwise have an allocation
renewed as soon as it runs."""
MIN_LEFT_SECONDS = 20.0
"""From the order to drain until the job has ended: what it needs to hand back what it has."""


def before_expiry(pool: Pool) -> float:
    """Seconds before the end of the walltime at which a successor should be ready."""
    asked = pool.spec.renewal.before_expiry_seconds
    if asked is None:
        asked = pool.spec.budget_seconds + MARGIN_SECONDS if isinstance(pool, RolloutPool) else BEFORE_EXPIRY_SECONDS
    return min(float(asked), MAX_EARLY_SHARE * walltime_seconds(pool.spec.allocation.time_limit))


def startup_seconds(pool: Pool) -> float:
    """Seconds from submit to ready to reckon with: as measured, else a guess."""
    known = pool.status.startup_seconds
    longest = STARTUP_SHARE * walltime_seconds(pool.spec.allocation.time_limit)
    return min(STARTUP_GUESS_SECONDS if known is None else known, longest)


class RenewalTime(NamedTuple):
    """When one allocation is replaced (Unix seconds)."""

    submit_at: float
    """Its successor is submitted."""
    retire_at: float
    """It goes, if its successor is ready: when that should be so, or before, when the successor of another needs its place."""


def renewal_times(pool: Pool, ends: Sequence[float]) -> list[RenewalTime]:
    """For ends in rising order. Rounds are cut so far that nobody's turn comes before it runs."""
    before, start, surge = before_expiry(pool), startup_seconds(pool), pool.spec.renewal.max_surge
    room = walltime_seconds(pool.spec.allocation.time_limit) - before - start
    due = due_times(ends, before + start, min(start, room * surge / max(1, len(ends))), surge)
    return [RenewalTime(due[i], min([end - before, *due[i + surge :][:1]])) for i, end in enumerate(ends)]


def due_times(ends: Sequence[float], lead: float, round_seconds: float, surge: int) -> list[float]:
    """When to submit each one's successor, for ends in rising order.

    A successor occupies one of `surge` places for `round_seconds`; so the i-th must be begun before the place that the
    (i + surge)-th needs is wanted: due[i] = min(end[i] - lead, due[i + surge] - round_seconds).
    """
    due = [end - lead for end in ends]
    for i in range(len(due) - 1 - surge, -1, -1):
        due[i] = min(due[i], due[i + surge] - round_seconds)
    return due


def can_take_work(pool: Pool, ends: float, now: float) -> bool:
    """Whether an allocation whose walltime ends then can still take new work."""
    need = float(pool.spec.budget_seconds) if isinstance(pool, RolloutPool) else 0.0
    return ends - now > need + MIN_LEFT_SECONDS


def learn_startup(
    known: float | None, known_until: float | None, seen: Iterable[tuple[float, float]]
) -> tuple[float | None, float | None]:
    """The start-up time with what was measured since: (ready at, seconds from submit to ready) of each allocation.

    It rises at once and falls by half of the difference: being early costs a little, being late a gap.
    """
    for ready_at, seconds in sorted(seen):
        if known_until is not None and ready_at <= known_until:
            continue
        known = seconds if known is None else max(seconds, (known + seconds) / 2)
        known_until = ready_at
    return known, known_until
