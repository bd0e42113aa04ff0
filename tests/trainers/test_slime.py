"""Samples of slime, without slime: what a trajectory becomes, and the rewards that the trainer sees."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.rollout import Status
from rollyard.trainers.slime.samples import group_rewards, samples_of, sampling_fields
from tests.support.slime_stand_in import Sample, SampleStatus, arguments
from tests.trainers.test_trl import TWO_TURNS, segment, trajectory


def sample(**more: Any) -> Any:
    return Sample(group_index=3, index=7, prompt="?", metadata={"source": "sums"}, **more)


def test_each_segment_with_sampled_tokens_is_a_sample_of_the_same_rollout() -> None:
    made = samples_of(sample(), trajectory(segment((1, 0), (2, 1)), segment((1, 0)), TWO_TURNS))
    assert [(s.tokens, s.response_length, s.loss_mask) for s in made] == [
        ([1, 2], 1, [1]),
        ([1, 2, 3, 4, 5, 6], 4, [1, 1, 0, 1]),
    ]
    assert made[1].rollout_log_probs == [-0.5, -0.5, 0.0, -0.5]
    assert {(s.rollout_id, s.group_index, s.reward, s.status) for s in made} == {(7, 3, 1.0, SampleStatus.COMPLETED)}
    assert [s.weight_versions for s in made] == [["v1"], ["v1"]]
    assert made[0].metadata == {"source": "sums", "rollyard_id": "r1"}
    assert not any(s.remove_sample for s in made)


@pytest.mark.parametrize(
    ("status", "theirs"),
    [
        (Status.FAILED, SampleStatus.FAILED),
        (Status.INFRA_FAILED, SampleStatus.ABORTED),
        (Status.CANCELLED, SampleStatus.ABORTED),
    ],
)
def test_a_fault_has_no_reward_and_is_removed(status: Status, theirs: SampleStatus) -> None:
    ended = trajectory(TWO_TURNS, reward=None).model_copy(update={"status": status})
    (made,) = samples_of(sample(), ended)
    assert (made.reward, made.status, made.remove_sample) == (None, theirs, True)
    assert (made.response_length, made.loss_mask, made.rollout_log_probs) == (1, [0], [0.0])
    assert len(made.tokens) == 2


def test_a_cut_rollout_is_scored_and_says_so() -> None:
    (made,) = samples_of(sample(), trajectory(TWO_TURNS).model_copy(update={"status": Status.TRUNCATED}))
    assert (made.status, made.reward) == (SampleStatus.TRUNCATED, 1.0)


def test_a_rollout_counts_once_in_its_groups_mean_and_a_fault_does_not_count() -> None:
    rewards = {(0, 0): [1.0], (0, 1): [0.0, 0.0, 0.0], (0, 2): [None], (1, 3): [0.5], (1, 4): [0.5]}
    samples = [
        Sample(group_index=group, rollout_id=rollout, reward=reward)
        for (group, rollout), found in rewards.items()
        for reward in found
    ]
    raw, gains = group_rewards(arguments(grpo_std_normalization=False), samples)
    assert raw == [1.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.5]
    assert gains == [0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0]
    _, scaled = group_rewards(arguments(), samples)
    assert scaled[:2] == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-5)
    assert group_rewards(arguments(advantage_estimator="ppo"), samples) == (raw, raw)


def test_values_of_slime_that_are_not_set_are_left_out() -> None:
    nothing = {"top_k": -1, "max_tokens": None, "stop": None, "stop_token_ids": None}
    assert sampling_fields(temperature=0.8, top_p=1.0, **nothing) == {"temperature": 0.8, "top_p": 1.0}
    assert sampling_fields(temperature=1.0, top_p=1.0, top_k=5, max_tokens=9, stop="x", stop_token_ids=[2]) == {
        "temperature": 1.0, "top_p": 1.0, "top_k": 5, "max_tokens": 9, "stop": ["x"], "stop_token_ids": [2],
    }  # fmt: skip
