"""Synchronous training steps over a dataset, and four orders in which their rollouts wait.

The server's own functions draw the tasks, order them, and keep their history. The lengths of rollouts are made: lognormal
between tasks and within a task. A rollout of a task has the same length under every order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.kinds.rollout import Status
from rollyard.server.batches.draw import DrawnTask, draw, longest_first
from rollyard.server.batches.task_history import with_group
from rollyard.store.batch_records import EndedRollout, GroupRecord, SeriesRecord, TaskHistory

GROUPS, N = 64, 8
OURS, FIFO, ORACLE = "ours", "first come first served", "oracle"
ORDERS = (OURS, FIFO, ORACLE)
MEANS = "known means"
"""The tasks with the greatest true mean first: what an estimate from the tasks' history can come close to."""


@dataclass(frozen=True)
class Spread:
    """Made lengths in tokens."""

    between: float
    """Sigma of the lognormal lengths between tasks."""
    within: float
    """Sigma of the lognormal lengths between the rollouts of one task."""
    median: float = 400.0

    def length(self, seed: int, drawn: DrawnTask, sample: int) -> int:
        own = random.Random(f"{seed}/{drawn.index}/{drawn.epoch}/{sample}").gauss(0, self.within)
        return max(8, round(self.median * math.exp(self.of_task(seed, drawn) + own)))

    def of_task(self, seed: int, drawn: DrawnTask) -> float:
        """Return the logarithm of the task's median length over the median of all."""
        return random.Random(f"{seed}/{drawn.index}").gauss(0, self.between)


SPREADS = {
    "0.7 between tasks, 0.4 within": Spread(0.7, 0.4),
    "1.0 between tasks, 0.6 within": Spread(1.0, 0.6),
    "0.5 between tasks, 0.8 within": Spread(0.5, 0.8),
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rollout of a step."""

    task: DrawnTask
    sample: int
    tokens: int


class Steps:
    """The steps of one trainer, each with the next `GROUPS` tasks of the dataset."""

    def __init__(self, spread: Spread, seed: int, tasks: int) -> None:
        self._spread, self._seed, self._tasks = spread, seed, tasks
        self._series = SeriesRecord("default", "tasks", "tasks", "tasks", seed, tasks)
        self._history: dict[int, TaskHistory] = {}

    def draw(self) -> tuple[DrawnTask, ...]:
        drawing = draw(self._series, GROUPS, self._history.get, stored=self._tasks, epochs=None, pass_over=False)
        self._series = drawing.series
        return drawing.tasks

    def queue(self, drawn: Sequence[DrawnTask], order: str) -> list[Waiting]:
        """Return the rollouts of the tasks in the order in which they wait."""
        tasks = longest_first(drawn, self._history.get) if order == OURS else drawn
        if order == MEANS:
            tasks = sorted(drawn, key=lambda task: -self._spread.of_task(self._seed, task))
        step = [Waiting(task, i, self._spread.length(self._seed, task, i)) for task in tasks for i in range(N)]
        return sorted(step, key=lambda w: -w.tokens) if order == ORACLE else step

    def learn(self, queue: Sequence[Waiting], seconds: Sequence[float]) -> None:
        """Add the rollouts of a step to the history of their tasks."""
        ended: dict[DrawnTask, list[EndedRollout]] = {}
        for waiting, took in zip(queue, seconds, strict=True):
            one = EndedRollout(waiting.sample, Status.COMPLETED, 1.0, waiting.tokens, 1, took)
            ended.setdefault(waiting.task, []).append(one)
        for task, rollouts in ended.items():
            group = GroupRecord(
                namespace="default",
                id="g",
                series="tasks",
                number=0,
                pool="pool",
                n=N,
                task_index=task.index,
                epoch=task.epoch,
                drawn_at=0.0,
                drawn_step=0,
                batch=None,
                ended=tuple(rollouts),
            )
            self._history[task.index] = with_group(self._history.get(task.index), group, informative=True)
