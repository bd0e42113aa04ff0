"""Statistics of evaluations equal what plain enumeration gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from rollyard.server.evaluations import statistics
from rollyard.server.evaluations.statistics import (
    Interval,
    bootstrap,
    compare,
    mean_reward,
    numbers_of_k,
    pass_all_k,
    pass_at_k,
    pass_rate,
    permutation_test,
    task_means,
)

SETS = [pytest.param(50, id="50"), pytest.param(1000, id="1000", marks=pytest.mark.long)]
SLACK = 0.012
"""Greatest error of a share of 10,000 resamples: five standard deviations, and the rounding of the quantile."""


def made_set(random: random.Random) -> list[list[float]]:
    """Rewards of some tasks, of which each has lost some to faults."""
    levels = random.choice(([0.0, 1.0], [0.0, 0.25, 0.5, 1.0], [-1.0, 0.3, 2.0]))
    return [[random.choice(levels) for _ in range(random.randint(0, 6))] for _ in range(random.randint(1, 8))]


def enumerated(rewards: Sequence[float], k: int, solved_at: float) -> tuple[float, float]:
    """Share of all choices of k rollouts in which one solves, and in which all do."""
    choices = list(itertools.combinations([reward >= solved_at for reward in rewards], k))
    return sum(map(any, choices)) / len(choices), sum(map(all, choices)) / len(choices)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("count", SETS)
def test_rates_and_means_equal_an_enumeration_of_all_choices(count: int) -> None:
    made = random.Random(7)
    for _ in range(count):
        tasks, k, solved_at = made_set(made), made.randint(1, 5), made.choice((0.5, 1.0))
        exact = [enumerated(rewards, k, solved_at) for rewards in tasks if len(rewards) >= k]
        for place, estimator in enumerate((pass_at_k, pass_all_k)):
            found = pass_rate(tasks, k, solved_at, estimator)
            assert (found is None) == (not exact)
            if found is not None:
                assert found.value == pytest.approx(mean([rates[place] for rates in exact]), abs=1e-12)
                assert found.tasks == len(exact)
        scored = [mean(rewards) for rewards in tasks if rewards]
        found = mean_reward(tasks)
        assert (found is None) == (not scored)
        if found is not None:
            assert (found.value, found.tasks) == (pytest.approx(mean(scored), abs=1e-12), len(scored))


@pytest.mark.parametrize("count", SETS)
def test_the_p_value_equals_an_enumeration_of_all_signs_and_random_signs_come_near(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random.Random(8)
    for number in range(count):
        pairs = [(made.choice((0.0, 0.5, 1.0)), made.choice((0.0, 0.5, 1.0))) for _ in range(made.randint(1, 9))]
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        differences = [other - one for one, other in pairs]
        observed = abs(sum(differences))
        sums = [
            abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
            for signs in itertools.product((-1, 1), repeat=len(pairs))
        ]
        exact = sum(one >= observed - 1e-9 for one in sums) / len(sums)
        found = compare(first, second)
        assert found is not None
        assert found.p_value == pytest.approx(exact, abs=1e-12)
        assert found.difference == pytest.approx(mean(second) - mean(first), abs=1e-12)
        if number % 10 == 0:
            with monkeypatch.context() as patch:
                patch.setattr(statistics, "EXACT_DIFFERENCES", 0)
                for equal_values in (statistics.EQUAL_VALUES, 0):  # the signs, and the numbers of equal differences
                    patch.setattr(statistics, "EQUAL_VALUES", equal_values)
                    assert permutation_test(np.asarray(differences)) == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize("count", SETS)
@pytest.mark.parametrize("equal_values", [statistics.EQUAL_VALUES, 0], ids=["values", "numbers of equal values"])
def test_the_interval_holds_95_percent_of_all_resamples(
    count: int, equal_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All resamples of five values are 3,125."""
    monkeypatch.setattr(statistics, "EQUAL_VALUES", equal_values)
    made = random.Random(9)
    for _ in range(count):
        values = [made.choice((0.0, 0.25, 0.5, 0.75, 1.0, made.random())) for _ in range(made.randint(1, 5))]
        means = sorted(mean(drawn) for drawn in itertools.product(values, repeat=len(values)))
        low, high = bootstrap(np.asarray(values))
        for bound, share in ((low, 0.025), (high, 0.975)):
            below = sum(one < bound - 1e-9 for one in means) / len(means)
            upto = sum(one <= bound + 1e-9 for one in means) / len(means)
            assert below <= share + SLACK, values
            assert upto >= share - SLACK, values


def test_many_tasks_get_fewer_resamples_and_the_interval_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.2, size=20_000)
    found = task_means(values.tolist())
    assert found is not None
    error = 1.96 * 0.2 / 20_000**0.5
    assert found.interval.low == pytest.approx(found.value - error, abs=error / 8)
    assert found.interval.high == pytest.approx(found.value + error, abs=error / 8)


def test_equal_values_give_nearly_the_same_numbers_and_take_a_moment() -> None:
    values = np.random.default_rng(1).integers(0, 5, size=20_000) / 4
    found = task_means(values.tolist())
    assert found is not None
    error = 1.96 * float(values.std()) / 20_000**0.5
    assert found.interval.low == pytest.approx(found.value - error, abs=error / 8)
    assert found.interval.high == pytest.approx(found.value + error, abs=error / 8)


def test_many_changed_tasks_get_random_signs() -> None:
    up = np.full(40, 0.5)
    assert permutation_test(up) < 0.001
    even = np.tile([0.5, -0.5], 20)
    assert permutation_test(even) == 1.0


def test_nothing_compares_as_nothing_and_equals_do_not_differ() -> None:
    assert compare([], []) is None
    found = compare([0.5, 1.0], [0.5, 1.0])
    assert found is not None
    assert (found.p_value, found.interval) == (1.0, Interval(0.0, 0.0))


def test_the_same_rewards_give_the_same_statistics() -> None:
    values = np.asarray([0.0, 0.25, 1.0, 1.0, 0.5])
    assert bootstrap(values) == bootstrap(values)


@pytest.mark.parametrize(
    ("k", "numbers"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])]
)
def test_rates_are_shown_for_powers_of_two_and_k(k: int, numbers: list[int]) -> None:
    assert numbers_of_k(k) == numbers
