"""Rows of SkyRL, without SkyRL: requests of a batch, and the output that trajectories become."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.filled_rewards import filled
from rollyard.trainers.skyrl.generator_rows import group_name, group_request, output_of, positions_by_instance
from rollyard.trajectory import Segment, Trajectory
from tests.trainers.test_trl import TASK, TWO_TURNS, segment, trajectory

SAMPLING = {
    "min_tokens": 1, "skip_special_tokens": True, "include_stop_str_in_output": True, "max_tokens": 64,
    "temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1, "stop": None,
}  # fmt: skip


def batch(*instances: str, phase: str = "train", step: int | None = 5, row: Any = None) -> dict[str, Any]:
    """Make a batch with a row for each name of an instance."""
    return {
        "prompts": [[]] * len(instances),
        "env_extras": [{"rollyard": json.dumps({"task": TASK}) if row is None else row}] * len(instances),
        "sampling_params": SAMPLING,
        "trajectory_ids": [SimpleNamespace(instance_id=name, repetition_id=i) for i, name in enumerate(instances)],
        "batch_metadata": SimpleNamespace(global_step=step, training_phase=phase),
    }


def request_of(given: dict[str, Any], **fields: Any) -> RolloutRequest:
    (name, positions), *_ = positions_by_instance(given).items()
    id = group_name("run1", given, name)
    return group_request(given, positions, pool="demo", name=id, fields=fields, versions=CheckpointVersions())


def output(*trajectories: Trajectory, step_wise: bool = False, names: str = "aaaa") -> dict[str, Any]:
    return output_of(
        batch(*names[: len(trajectories)]), trajectories, step_wise=step_wise, versions=CheckpointVersions("v"),
        metrics_of=lambda responses, rewards, loss_masks: {"rows": len(responses)},
    )  # fmt: skip


def test_rows_of_an_instance_are_one_group_wherever_they_stand() -> None:
    assert positions_by_instance(batch("a", "b", "a")) == {"a": [0, 2], "b": [1]}
    request = request_of(batch("a", "b", "a"))
    assert (request.id, request.n, request.mode) == ("run1-train-5-a", 2, "train")
    assert request.min_weights_version == "step4"
    with pytest.raises(ValueError, match="prepare_generator_input"):
        positions_by_instance({"prompts": [[]], "trajectory_ids": None})


def test_an_evaluation_comes_after_its_step_and_outside_of_a_training_nothing_is_attached_to() -> None:
    request = request_of(batch("a", phase="eval"))
    assert (request.id, request.mode, request.min_weights_version) == ("run1-eval-5-a", "eval", "step5")
    outside = request_of(batch("a", phase="eval", step=None))
    assert (outside.id, outside.min_weights_version) == (None, None)


def test_the_row_counts_before_the_options_and_the_options_before_the_trainer() -> None:
    sampling = request_of(batch("a")).sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.top_k, sampling.extra) == (0.7, 64, None, {})
    assert sampling.logprobs == "raw"
    row = {"task": TASK, "sampling": {"max_tokens": 8}}
    given = {**batch("a", row=row), "sampling_params": {**SAMPLING, "top_k": 20, "detector": "x"}}
    request = request_of(given, agent={"max_turns": 3}, sampling={"max_tokens": 16, "logprobs": "processed"})
    assert (request.sampling.max_tokens, request.sampling.logprobs, request.sampling.top_k) == (8, "processed", 20)
    assert (request.sampling.extra, request.agent.max_turns) == ({"detector": "x"}, 3)
    with pytest.raises(Invalid, match="add a column `rollyard`"):
        request_of(batch("a", row={}) | {"env_extras": [{}]})


def test_a_flat_output_has_the_segment_with_the_most_sampled_tokens_and_counts_the_rest() -> None:
    found = output(trajectory(segment((1, 0), (2, 1)), TWO_TURNS), trajectory(TWO_TURNS, reward=0.5))
    assert (found["prompt_token_ids"][0], found["response_ids"][0]) == ([1, 2], [3, 4, 5, 6])
    assert (found["loss_masks"][0], found["rollout_logprobs"][0]) == ([1, 1, 0, 1], [-0.5, -0.5, 0.0, -0.5])
    assert (found["rewards"], found["stop_reasons"], found["is_last_step"]) == ([1.0, 0.5], ["stop"] * 2, None)
    own = {name: value for name, value in found["rollout_metrics"].items() if name.startswith("rollout/")}
    assert own == {
        "rollout/without_reward": 0, "rollout/left_out_tokens": 1, "rollout/turns_mean": 0,
        "rollout/weights_step_min": 1, "rollout/weights_step_max": 1,
    }  # fmt: skip


def test_a_step_wise_output_has_each_segment_with_the_rollouts_reward() -> None:
    unsampled = segment((1, 0), (2, 0))
    found = output(
        trajectory(segment((1, 0), (2, 1)), unsampled, TWO_TURNS), trajectory(reward=None), trajectory(TWO_TURNS),
        step_wise=True,
    )  # fmt: skip
    assert found["response_ids"] == [[2], [3, 4, 5, 6], [0], [3, 4, 5, 6]]
    assert found["is_last_step"] == [False, True, True, True]
    assert [named.repetition_id for named in found["trajectory_ids"]] == [0, 0, 1, 2]
    assert found["rewards"] == [1.0] * 4
    assert found["rollout_metrics"]["rollout/left_out_tokens"] == 0


@pytest.mark.parametrize("segments", [(), (TWO_TURNS,)], ids=["before the first token", "after some tokens"])
def test_a_fault_has_no_token_to_train_on_and_the_mean_of_its_group(segments: tuple[Segment, ...]) -> None:
    scored = [trajectory(TWO_TURNS, reward=reward) for reward in (0.0, 1.0, 0.5)]
    found = output(*scored, trajectory(*segments, reward=None))
    assert (found["response_ids"][3], found["loss_masks"][3], found["stop_reasons"][3]) == ([0], [0], "error")
    assert found["rewards"] == [0.0, 1.0, 0.5, 0.5]
    assert found["rollout_metrics"]["rollout/without_reward"] == 1
    assert found["rollout_metrics"]["rows"] == 3, "SkyRL's metrics are about rollouts with a reward"
    alone = output(trajectory(reward=None))
    assert (alone["rewards"], alone["loss_masks"]) == ([0.0], [[0]])


def test_a_cut_rollout_is_scored_and_says_so() -> None:
    cut = trajectory(TWO_TURNS).model_copy(update={"status": Status.TRUNCATED})
    assert output(cut)["stop_reasons"] == ["length"]


def test_a_missing_reward_moves_neither_the_mean_of_its_group_nor_the_mean_of_all() -> None:
    assert filled([1.0, None, 0.0, 1.0, None], ["a", "a", "a", "b", "c"]) == [1.0, 0.5, 0.0, 1.0, pytest.approx(2 / 3)]
    assert filled([None, None], ["a", "b"]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("versions", "done", "required"),
    [
        (CheckpointVersions(), 0, None),
        (CheckpointVersions(), 1, "step1"),
        (CheckpointVersions(prefix="b"), 7, "b7"),
        (CheckpointVersions(every=5), 4, None),
        (CheckpointVersions(every=5), 14, "step10"),
        (CheckpointVersions(lag=1), 1, None),
        (CheckpointVersions(lag=1), 2, "step1"),
        (CheckpointVersions(first=0), 1, "step0"),
        (CheckpointVersions(first=0, every=5), 14, "step9"),
    ],
)
def test_rollouts_wait_for_the_newest_checkpoint_that_is_written(
    versions: CheckpointVersions, done: int, required: str | None
) -> None:
    assert versions.required(done) == required
    if required is not None:
        assert versions.number(required) == int(required.removeprefix(versions.prefix))


def test_a_version_of_another_form_has_no_number() -> None:
    assert [CheckpointVersions().number(version) for version in ("v1", "step", "step1b", "3f2a")] == [None] * 4
