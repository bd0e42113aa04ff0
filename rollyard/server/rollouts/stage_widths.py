"""Widths (numbers of stage workers) of the stages of one allocation, computed from its work and its number of places. A
place is room for one stage worker. Pure.

Places beyond the minimum widths go to the last stage that can use them, so that rollouts near their results finish
before others begin. No stage's width depends on the width of an earlier stage, so widths do not oscillate. INIT exceeds
its minimum only as far as RUN can take the sandboxes, because a waiting sandbox holds memory.

A width is computed from the highest need of the stage in the last `HOLD_SECONDS`. If a stage has more work than its new
width, the node agent begins no new work in this stage until enough of the work has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import Stages, Workers

HOLD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RecentPeak:
    """Highest need of a stage in the last `HOLD_SECONDS`. Each need lasts until the next call of `observe`."""

    need: int
    past: tuple[tuple[float, int], ...] = ()
    """Earlier needs that still count, as (time at which the need ended, need). The oldest and highest need is first."""

    def observe(self, now: float, need: int) -> Self:
        known = (*self.past, (now, self.need))
        kept = tuple((until, n) for until, n in known if n > need and until + HOLD_SECONDS > now)
        return type(self)(need, kept)

    @property
    def value(self) -> int:
        return self.past[0][1] if self.past else self.need

    @property
    def expires_at(self) -> float | None:
        """Time from which `observe` with the present need returns an object with a lower `value`; None if `value` will
        not fall."""
        return self.past[0][0] + HOLD_SECONDS if self.past else None


History = Mapping[Stage, RecentPeak]
"""Recent needs of the stages of one allocation."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """Work for one allocation, by stage."""

    in_hand: Mapping[Stage, int]
    """Number of rollouts that the node agent holds, including those that wait for a stage worker."""
    queued: Mapping[Stage, int]
    """The allocation's share of the pool's queue."""

    def of(self, stage: Stage) -> int:
        return self.in_hand.get(stage, 0) + self.queued.get(stage, 0)


def share_of_queue(queued: Mapping[Stage, int], node_agents: int) -> dict[Stage, int]:
    """Return the share of a pool's queue for one of `node_agents` node agents, rounded up."""
    return {stage: -(-n // node_agents) for stage, n in queued.items()} if node_agents else {}


def initial(widths: Mapping[Stage, int]) -> History:
    """Return the history of a newly seen allocation. Its present widths count as needs, so no stage shrinks immediately."""
    return {stage: RecentPeak(widths.get(stage, 0)) for stage in Stage}


def plan_widths(
    history: History, load: StageLoad, stages: Stages, places: int, now: float
) -> tuple[History, dict[Stage, int] | None]:
    """Return the history with the present needs added, and the widths for the recent peaks in this history.

    Each width is between `min` and `max` of its stage. The sum of the widths is at most `places`. The widths are None if
    the minimum widths do not fit: then the allocation has an earlier spec and will be replaced.
    """
    spare = places - stages.init.workers.min - stages.run.workers.min - stages.eval.workers.min
    if spare < 0:
        return history, None
    after: dict[Stage, RecentPeak] = {}
    widths: dict[Stage, int] = {}

    def grow(stage: Stage, workers: Workers, need: int) -> None:
        nonlocal spare
        after[stage] = history[stage].observe(now, need)
        widths[stage] = _clamped(workers, after[stage].value, spare)
        spare -= widths[stage] - workers.min

    grow(Stage.EVAL, stages.eval.workers, load.of(Stage.EVAL))
    run = stages.run.workers
    reach = _clamped(run, run.max, spare)
    grow(Stage.RUN, run, load.of(Stage.RUN))
    ahead = stages.init.workers.min + max(0, reach - load.of(Stage.RUN))
    grow(Stage.INIT, stages.init.workers, min(load.of(Stage.INIT), ahead))
    return after, widths


def next_change_at(history: History) -> float | None:
    """Return the time from which `plan_widths` may return lower widths for the same work; None if it will not. The time
    is on the same clock as `now` of `plan_widths`."""
    return min((at for lately in history.values() if (at := lately.expires_at) is not None), default=None)


def _clamped(workers: Workers, need: int, spare: int) -> int:
    return min(max(need, workers.min), workers.max, workers.min + spare)
