"""Advantages of groups: values worked out by hand, rewards that are missing, and properties for any rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.client.advantages import ADVANTAGES, group_advantages, grpo, leave_one_out, mean_baseline


def test_grpo_divides_by_the_standard_deviation_of_the_sample() -> None:
    deviation = math.sqrt((3 * 0.25**2 + 0.75**2) / 3)
    expected = [0.75 / deviation, *[-0.25 / deviation] * 3]
    assert grpo([1, 0, 0, 0], epsilon=0) == pytest.approx(expected)


def test_the_mean_baseline_keeps_the_unit_of_the_reward() -> None:
    assert mean_baseline([[1, 0], [3, 1]]).tolist() == [[0.5, -0.5], [1, -1]]


def test_leave_one_out_compares_with_the_others() -> None:
    assert leave_one_out([1, 0, 0]) == pytest.approx([1, -0.5, -0.5])


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_a_missing_reward_counts_in_no_baseline(kind: str) -> None:
    found = group_advantages([1.0, None, 0.0, None], kind)
    assert found[[0, 2]] == pytest.approx(group_advantages([1.0, 0.0], kind))
    assert found[[1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("kind", ADVANTAGES)
@pytest.mark.parametrize("rewards", [[None, None], [None, 0.5], [0.5]])
def test_a_group_without_two_rewards_teaches_nothing(kind: str, rewards: list[float | None]) -> None:
    assert group_advantages(rewards, kind).tolist() == [0.0] * len(rewards)


def test_an_unknown_name_says_which_exist() -> None:
    with pytest.raises(ValueError, match="choose one of grpo, mean_baseline, leave_one_out"):
        group_advantages([1.0], "ppo")


rewards_of_a_group = st.lists(st.none() | st.floats(-100, 100), min_size=2, max_size=16)


@given(rewards_of_a_group, st.sampled_from(sorted(ADVANTAGES)))
def test_advantages_are_finite_and_sum_to_zero(rewards: list[float | None], kind: str) -> None:
    found = group_advantages(rewards, kind)
    assert np.isfinite(found).all()
    # rounding of the rewards is divided by epsilon where they are almost equal
    assert abs(found.sum()) <= 1e-6 * max(1.0, float(np.abs(found).max())) * len(rewards)
