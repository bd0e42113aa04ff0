"""Padded arrays of groups: a row for each segment, nothing of a rollout without a reward, versions by token."""

from __future__ import annotations

import numpy as np
import pytest

from rollyard.client.training_rows import collate
from rollyard.kinds.rollout import Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Segment, Timings, Trajectory
from rollyard.trajectory.columns import columns_of, join


def segment(prompt: list[int], sampled: list[int], version: str = "v1") -> Segment:
    return Segment(
        token_ids=prompt + sampled,
        loss_mask=[0] * len(prompt) + [1] * len(sampled),
        logprobs=[None] * len(prompt) + [-0.5 * i for i in range(1, len(sampled) + 1)],
        weights_version=[None] * len(prompt) + [version] * len(sampled),
        prompt_length=len(prompt),
    )


def trajectory(id: str, reward: float | None, *segments: Segment, group: str | None = "g") -> Trajectory:
    return Trajectory(
        id=id,
        group=group,
        sample_index=0,
        attempt=1,
        status=Status.INFRA_FAILED if reward is None else Status.COMPLETED,
        reward=reward,
        metrics={},
        task=Task(kind="null"),
        segments=list(segments),
        turns=[],
        timings=Timings(),
        endpoint=None,
        node=None,
        error=None,
    )


def test_each_segment_is_a_row_with_the_advantage_of_its_rollout() -> None:
    rewritten = trajectory("a", 1.0, segment([1, 2], [3], "v1"), segment([4], [5, 6], "v2"))
    broken = trajectory("b", None, segment([1], [2]))
    plain = trajectory("c", 0.0, segment([7], [8], "v2"))
    rows = collate(columns_of([rewritten, broken, plain]), advantages="mean_baseline", pad_id=99)
    assert rows.input_ids.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 99]]
    assert rows.attention_mask.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    assert rows.loss_mask.tolist() == [[0, 0, 1], [0, 1, 1], [0, 1, 0]]
    assert rows.logprobs.tolist() == [[0, 0, -0.5], [0, -0.5, -1], [0, -0.5, 0]]
    assert rows.versions == ("v1", "v2")
    assert rows.weights_version.tolist() == [[-1, -1, 0], [-1, 1, 1], [-1, 1, -1]]
    assert rows.advantages.tolist() == [0.5, 0.5, -0.5]
    assert rows.rewards.tolist() == [1, 1, 0]
    assert rows.rollout.tolist() == [0, 0, 2]
    assert rows.group.tolist() == [0, 0, 0]
    assert rows.sampled_tokens == 4


def test_a_segment_that_is_too_long_is_left_out_whole_and_its_reward_still_counts() -> None:
    long, short = trajectory("a", 1.0, segment([1] * 9, [2])), trajectory("b", 0.0, segment([1], [2]))
    rows = collate(columns_of([long, short]), advantages="mean_baseline", max_length=5)
    assert rows.input_ids.shape == (1, 2)
    assert rows.advantages.tolist() == [-0.5]
    assert rows.rollout.dtype == np.int32


def test_a_segment_without_a_sampled_token_is_no_row() -> None:
    unsampled = trajectory("a", 1.0, segment([1, 2, 3], []), segment([1], [2]))
    rows = collate(columns_of([unsampled, trajectory("b", 0.0, segment([4, 5], []))]), advantages="mean_baseline")
    assert (rows.input_ids.tolist(), rows.loss_mask.tolist(), rows.rollout.tolist()) == ([[1, 2]], [[0, 1]], [0])
    with pytest.raises(ValueError, match="no rollout has a reward and a segment to train on"):
        collate(columns_of([trajectory("b", 0.0, segment([4, 5], []))]))


def test_groups_have_baselines_of_their_own() -> None:
    pairs = [
        [trajectory(f"{g}.{i}", float(g + i), segment([1], [2]), group=str(g)) for i in range(2)] for g in range(2)
    ]
    rows = collate(join([columns_of(pair) for pair in pairs]), advantages="mean_baseline")
    assert (rows.advantages.tolist(), rows.group.tolist()) == ([-0.5, 0.5, -0.5, 0.5], [0, 0, 1, 1])


def test_rollouts_without_a_group_are_not_compared() -> None:
    alone = [trajectory("a", 1.0, segment([1], [2]), group=None), trajectory("b", 0.0, segment([1], [2]), group=None)]
    rows = collate(columns_of(alone), advantages="mean_baseline")
    assert (rows.advantages.tolist(), rows.group.tolist()) == ([0, 0], [0, 1])


def test_versions_of_no_row_are_left_out() -> None:
    long, short = trajectory("a", 1.0, segment([1] * 9, [2], "v1")), trajectory("b", 0.0, segment([1], [2], "v2"))
    rows = collate(columns_of([long, short]), max_length=5)
    assert (rows.versions, rows.weights_version.tolist()) == (("v2",), [[-1, 0]])


def test_nothing_to_train_on_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(ValueError, match="look at their `status` and `error`"):
        collate(columns_of([trajectory("a", None)]))
