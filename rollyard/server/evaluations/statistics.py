"""Statistics over the rewards of tasks, and paired tests between two evaluations. Pure.

The unit is the task: intervals and tests draw tasks, never single rollouts, because the rollouts of one task depend on each
other. Random numbers have a fixed seed, so the same rewards give the same statistics. With few tasks the intervals are too
narrow, as those of every percentile bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rewards = Sequence[float]
"""Rewards of the rollouts of one task that have a reward."""
SEED = 0
LEVEL = 0.95
RESAMPLES, LEAST_RESAMPLES = 10_000, 1_000
MAX_DRAWS = 20_000_000
"""Greatest number of random numbers for one interval or test. With many tasks there are fewer resamples."""
DRAWN_AT_ONCE = 1_000_000
EQUAL_VALUES = 8
"""If a value occurs so often on average, the numbers of equal values are drawn, not the values: the distribution is the same,
and it takes a thousandth of the time. Mean rewards of a few rollouts have few values."""
EXACT_DIFFERENCES = 16
"""Up to this many tasks that differ, all signs of the differences are tried."""
SIGNIFICANT = 0.05
"""A p-value below this speaks against chance."""
EQUAL = 1e-9


class Interval(NamedTuple):
    low: float
    high: float


class TaskMeans(NamedTuple):
    """Mean over tasks, and the number of tasks in it."""

    value: float
    interval: Interval
    tasks: int


class PairedTest(NamedTuple):
    first: float
    second: float
    difference: float
    interval: Interval
    p_value: float


def solved(rewards: Rewards, solved_at: float) -> int:
    """Return how many of a task's rollouts have solved it."""
    return sum(reward >= solved_at for reward in rewards)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k, the probability that at least one of k rollouts solves the task, if c of n
    rollouts have solved it: 1 - C(n - c, k) / C(n, k). Chen et al. 2021, Evaluating Large Language Models Trained on Code
    (arXiv 2107.03374), equation 1. Needs n >= k."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_all_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass^k, the probability that each of k rollouts solves the task:
    C(c, k) / C(n, k). Yao et al. 2024, tau-bench (arXiv 2406.12045), section 3. Needs n >= k."""
    return comb(c, k) / comb(n, k)


def mean_reward(tasks: Sequence[Rewards]) -> TaskMeans | None:
    """Return the mean over the tasks' mean rewards. Tasks without a reward are left out. None: no task has one."""
    return task_means([sum(rewards) / len(rewards) for rewards in tasks if rewards])


def pass_rate(
    tasks: Sequence[Rewards], k: int, solved_at: float, estimator: Callable[[int, int, int], float]
) -> TaskMeans | None:
    """Return the mean of pass@k or pass^k over the tasks with at least k rewards. None: there is no such task."""
    return task_means([estimator(len(r), solved(r, solved_at), k) for r in tasks if len(r) >= k])


def numbers_of_k(k: int) -> list[int]:
    """Return the numbers for which pass@k is shown: the powers of 2 up to k, and k."""
    return sorted({k, *(1 << power for power in range(k.bit_length()))})


def task_means(values: Sequence[float]) -> TaskMeans | None:
    if not values:
        return None
    found = np.asarray(values, dtype=np.float64)
    return TaskMeans(float(found.mean()), bootstrap(found), len(values))


def bootstrap(values: NDArray[np.float64]) -> Interval:
    """Return the 95 % interval of the mean: percentile bootstrap (Efron 1979) over the values."""
    count, random = len(values), np.random.default_rng(SEED)
    distinct, numbers = np.unique(values, return_counts=True)
    if len(distinct) * EQUAL_VALUES <= count:
        means = np.empty(RESAMPLES)
        for part in _parts(means, len(distinct)):
            part[:] = random.multinomial(count, numbers / count, size=len(part)) @ distinct / count
        return _middle(means)
    means = np.empty(_resamples(count))
    for part in _parts(means, count):
        part[:] = values[random.integers(0, count, size=(len(part), count))].mean(axis=1)
    return _middle(means)


def _parts(drawn: NDArray[np.float64], draws: int) -> Iterator[NDArray[np.float64]]:
    """Yield parts for which not too many random numbers are drawn at once. `draws`: random numbers of one element."""
    step = max(1, DRAWN_AT_ONCE // draws)
    for start in range(0, len(drawn), step):
        yield drawn[start : start + step]


def _middle(means: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def compare(first: Sequence[float], second: Sequence[float]) -> PairedTest | None:
    """Compare the values of the same tasks in two evaluations, in the same order. None: there are no tasks."""
    if not first:
        return None
    before, after = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    differences = after - before
    means = (float(before.mean()), float(after.mean()), float(differences.mean()))
    return PairedTest(*means, bootstrap(differences), permutation_test(differences))


def permutation_test(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the paired permutation test (Fisher 1935): if the two evaluations did not differ, each
    task's difference could as well have the other sign.

    All signs are tried if at most EXACT_DIFFERENCES tasks differ. Otherwise random signs are drawn, and the observed ones
    count as one more draw (Phipson and Smyth 2010), so the p-value is never 0.
    """
    changed = differences[np.abs(differences) > EQUAL]
    count, observed = len(changed), abs(float(changed.sum()))
    if count == 0:
        return 1.0
    if count <= EXACT_DIFFERENCES:
        signs = (np.arange(1 << count)[:, None] >> np.arange(count) & 1) * 2 - 1
        return float(np.mean(np.abs(signs @ changed) >= observed - EQUAL))
    random = np.random.default_rng(SEED)
    distinct, numbers = np.unique(np.abs(changed), return_counts=True)
    if len(distinct) * EQUAL_VALUES <= count:
        sums = np.empty(RESAMPLES)
        for part in _parts(sums, len(distinct)):
            positive = random.binomial(numbers, 0.5, size=(len(part), len(distinct)))
            part[:] = (2 * positive - numbers) @ distinct
    else:
        sums = np.empty(_resamples(count))
        for part in _parts(sums, count):
            part[:] = (random.integers(0, 2, size=(len(part), count)) * 2 - 1) @ changed
    extreme = int(np.count_nonzero(np.abs(sums) >= observed - EQUAL))
    return (extreme + 1) / (len(sums) + 1)


def _resamples(count: int) -> int:
    return max(LEAST_RESAMPLES, min(RESAMPLES, MAX_DRAWS // count))
