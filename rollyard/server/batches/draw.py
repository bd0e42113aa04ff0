"""`draw(series, count, ...)`: the next tasks of a series, from the series' position and the tasks' history. Pure.

Seed and epoch determine the order of the tasks. The task at one position is computed without the rest of the order, so
the order needs no memory, also for millions of tasks. A task that was uninformative k times in a row is passed over
with probability 1 - 0.5^k (GRESO, arXiv 2506.02177). k is at most MAX_STREAK, so every task is drawn again in some
epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rollyard.store.batch_records import GroupRecord, PutBack, SeriesRecord, TaskHistory

MAX_STREAK = 6
"""Longest streak (number of uninformative groups in a row) that counts. A task with this streak is drawn in one of 64
epochs on average."""
MAX_FAULTY = 3
"""After this many faulty groups in one epoch, a task is not drawn again before the next epoch."""
PUT_BACK_GROUPS = 8
"""After a task's first faulty group, this many other groups are drawn before the task is drawn again. After its second
faulty group it is twice as many. By then a broken node may be gone. When all epochs are over, the task is drawn at
once."""
MAX_LOOKED = 4096
"""Greatest number of tasks that one draw looks at. The limit keeps the transaction short; the next draw continues."""
ROUNDS = 4
MAX_PRIORITY = 1000
ReadHistory = Callable[[int], TaskHistory | None]


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """Task that was drawn: its index in the source, and the epoch of the draw."""

    index: int
    epoch: int
    tries: int = 0
    """Number of faulty groups of this task in this epoch."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Result of one draw."""

    series: SeriesRecord
    tasks: tuple[DrawnTask, ...]
    passed_over: int
    drained: bool
    """Whether all epochs are over, and no task of a faulty group waits to be drawn again."""


def draw(
    series: SeriesRecord,
    count: int,
    history: ReadHistory,
    *,
    stored: int,
    epochs: int | None,
    pass_over: bool,
) -> Drawing:
    """Draw at most `count` tasks: put-back tasks as soon as they are due, otherwise tasks from the series' position on.

    `stored`: number of tasks that a plug-in has returned so far. It is used while the plug-in's total is unknown.
    """
    drawn: list[DrawnTask] = []
    passed = looked = 0
    while len(drawn) < count and looked < MAX_LOOKED:
        looked += 1
        drained = _is_drained(series, epochs)
        if (again := _take_put_back(series, series.next_number + len(drawn), whatever=drained)) is not None:
            series, task = again
            drawn.append(task)
            continue
        if drained or (series.tasks is None and series.position >= stored):
            break
        index = place(series.position, series.tasks, series.seed, series.epoch)
        task = DrawnTask(index, series.epoch)
        series = _step_on(series)
        if pass_over and series.dataset is not None and _is_passed_over(history(index), series, task):
            passed += 1
        else:
            drawn.append(task)
    series = replace(series, passed_over=series.passed_over + passed)
    return Drawing(series, tuple(drawn), passed, _is_drained(series, epochs) and not series.put_back)


def with_end(series: SeriesRecord, tasks: int) -> SeriesRecord:
    """Return the series with its number of tasks, which is known once its plug-in has no more tasks. If the position
    has reached this number, the next epoch begins."""
    series = replace(series, tasks=tasks)
    return replace(series, epoch=series.epoch + 1, position=0) if series.position >= tasks else series


def put_back(series: SeriesRecord, group: GroupRecord) -> SeriesRecord:
    """Return the series after the task of a faulty group is put back: the task waits to be drawn again, if `may_return`
    allows it."""
    if not may_return(group):
        return series
    due = series.next_number + PUT_BACK_GROUPS * (group.tries + 1)
    again = PutBack(group.task_index, group.epoch, group.tries + 1, due)
    return replace(series, put_back=(*series.put_back, again))


def may_return(group: GroupRecord) -> bool:
    """Whether the task of this faulty group is drawn again in the same epoch."""
    return group.tries + 1 < MAX_FAULTY


def longest_first(tasks: Sequence[DrawnTask], history: ReadHistory) -> list[DrawnTask]:
    """Sort tasks by the mean seconds of their earlier rollouts, the longest first. For a task without a history,
    the mean of the other tasks is used."""
    seconds = [found.seconds if (found := history(t.index)) and found.rollouts else None for t in tasks]
    known = [s for s in seconds if s is not None]
    mean = sum(known) / len(known) if known else 0.0
    order = sorted(range(len(tasks)), key=lambda i: (-(mean if (s := seconds[i]) is None else s), i))
    return [tasks[i] for i in order]


def engine_priority(task: TaskHistory | None, mean_seconds: float) -> int | None:
    """Return the priority of a task's requests at an engine; None if the task has no history or `mean_seconds` is not
    positive. Engines serve lower numbers first.

    A task that takes as long as the mean has priority 0, like requests without a priority. A longer task has a lower
    number.
    """
    if task is None or not task.rollouts or mean_seconds <= 0:
        return None
    return round(max(-MAX_PRIORITY, 100 * (1 - task.seconds / mean_seconds)))


def place(position: int, tasks: int | None, seed: int | None, epoch: int) -> int:
    """Return the index of the task at this position of an epoch: a bijection of 0..tasks-1. Without a seed it is the
    position itself.

    A Feistel network of four rounds over the next power of four is repeated until the value is less than `tasks` (Black
    and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """
    if seed is None or tasks is None or tasks < 2:
        return position
    bits = ((tasks - 1).bit_length() + 1) // 2
    value = position
    while True:
        left, right = value >> bits, value & ((1 << bits) - 1)
        for number in range(ROUNDS):
            left, right = right, left ^ (_hash(seed, epoch, number, right) & ((1 << bits) - 1))
        value = left << bits | right
        if value < tasks:
            return value


def is_passed_over(streak: int, seed: int, epoch: int, index: int) -> bool:
    """Whether a task with this streak is passed over in this epoch. The result is the same in every process."""
    share = 1 - 0.5 ** min(streak, MAX_STREAK)
    return _hash(seed, epoch, -1, index) < share * 2**64


def _is_passed_over(history: TaskHistory | None, series: SeriesRecord, task: DrawnTask) -> bool:
    return (
        history is not None
        and history.streak > 0
        and is_passed_over(history.streak, series.seed or 0, task.epoch, task.index)
    )


def _hash(*values: int) -> int:
    text = ",".join(map(str, values)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _is_drained(series: SeriesRecord, epochs: int | None) -> bool:
    return epochs is not None and series.epoch >= epochs


def _step_on(series: SeriesRecord) -> SeriesRecord:
    position = series.position + 1
    if series.tasks is not None and position >= series.tasks:
        return replace(series, epoch=series.epoch + 1, position=0)
    return replace(series, position=position)


def _take_put_back(series: SeriesRecord, number: int, *, whatever: bool) -> tuple[SeriesRecord, DrawnTask] | None:
    for i, again in enumerate(series.put_back):
        if whatever or again.due <= number:
            rest = (*series.put_back[:i], *series.put_back[i + 1 :])
            return replace(series, put_back=rest), DrawnTask(again.index, again.epoch, again.tries)
    return None
