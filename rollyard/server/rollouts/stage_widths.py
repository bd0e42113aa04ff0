"""How wide the stages of one allocation should be: towards the queue, within its cores and memory. Pure.

Places beyond the minimum widths go to the stages that can use them, the last one first: what is nearest to its result is
finished before more is begun. So no stage's width depends on that of a stage before it, and the two cannot chase each
other. INIT is only so much wider than its minimum as RUN can take its sandboxes: more of them would wait, and hold memory.

A stage keeps the most that it needed within the last `HOLD_SECONDS`. The node agent waits where work in hand exceeds
a new width: a stage that should be narrower begins nothing new until enough of its work has ended.
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
    """The most that a stage needed in the last `HOLD_SECONDS`. A need lasts until the next one is known."""

    need: int
    past: tuple[tuple[float, int], ...] = ()
    """(until when, need) of what was needed before and is still to be kept; both fall, from the highest on."""

    def observe(self, now: float, need: int) -> Self:
        known = (*self.past, (now, self.need))
        kept = tuple((until, n) for until, n in known if n > need and until + HOLD_SECONDS > now)
        return type(self)(need, kept)

    @property
    def value(self) -> int:
        return self.past[0][1] if self.past else self.need

    @property
    def expires_at(self) -> float | None:
        """When `most` is lower if nothing happens; None for never."""
        return self.past[0][0] + HOLD_SECONDS if self.past else None


History = Mapping[Stage, RecentPeak]
"""What the stages of one allocation needed lately."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What there is to do for one allocation, by stage."""

    in_hand: Mapping[Stage, int]
    """Rollouts that its node agent holds: in a stage worker, or in line for one."""
    queued: Mapping[Stage, int]
    """Its share of the pool's queue."""

    def of(self, stage: Stage) -> int:
        return self.in_hand.get(stage, 0) + self.queued.get(stage, 0)


def share_of_queue(queued: Mapping[Stage, int], agents: int) -> dict[Stage, int]:
    """Of a pool's queue, what one of so many node agents may expect."""
    return {stage: -(-n // agents) for stage, n in queued.items()} if agents else {}


def initial(widths: Mapping[Stage, int]) -> History:
    """Of an allocation that is seen for the first time: what it has may be needed, so nothing shrinks at once."""
    return {stage: RecentPeak(widths.get(stage, 0)) for stage in Stage}


def plan_widths(
    history: History, load: StageLoad, stages: Stages, places: int, now: float
) -> tuple[History, dict[Stage, int] | None]:
    """The history with what is needed now, and the widths that follow from it.

    Widths lie between `min` and `max` of their stage, and their sum within `places`. None where not even the minimum widths
    fit: an allocation of an earlier spec, which will be replaced.
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
    """When the widths may be smaller if nothing happens (on the clock of `follow`); None for never."""
    return min((at for lately in history.values() if (at := lately.expires_at) is not None), default=None)


def _clamped(workers: Workers, need: int, spare: int) -> int:
    return min(max(need, workers.min), workers.max, workers.min + spare)
