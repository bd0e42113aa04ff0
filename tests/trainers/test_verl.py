"""Samples for verl, without verl: requests of sessions, and what a trajectory becomes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import Invalid, NoReward
from rollyard.kinds.rollout import Budgets, RolloutError, Status
from rollyard.kinds.task import Task
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.verl.session_samples import LoopSettings, request_of, samples_of
from rollyard.trainers.verl.shared_client import shared_client
from rollyard.trajectory import Segment, Timings, Trajectory, Turn

TASK = {"kind": "math", "problem": "What is 1 + 1?", "answer": "2"}
SETTINGS = LoopSettings(pool="demo", prompt_length=4, response_length=8, versions=CheckpointVersions())
ROW = {"uid": "a-b", "session_id": 2, "global_steps": 5, "rollyard": json.dumps({"task": TASK})}
SAMPLING = {"temperature": 0.7, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def segment(mask: str, *, prompt: int, version: str = "step4") -> Segment:
    """Make a segment: `mask` has a 1 for each sampled token."""
    sampled = [int(letter) for letter in mask]
    return Segment(
        token_ids=list(range(len(mask))),
        loss_mask=sampled,
        logprobs=[-0.5 if one else None for one in sampled],
        weights_version=[version if one else None for one in sampled],
        prompt_length=prompt,
    )


def trajectory(*segments: Segment, status: Status = Status.COMPLETED) -> Trajectory:
    called = Turn(segment=0, prompt_length=2, response_length=2, text="", finish_reason="stop", tool_results=["4"])
    answered = called.model_copy(update={"tool_results": [], "timings": {"model": 1.5, "tools": 0.5}})
    return Trajectory(
        id="verl-a-b-2", group="verl-a-b", sample_index=0, attempt=1, status=status, metrics={"correct": 1.0, "reward": 2},
        reward=0.25 if status.scored else None, task=Task.model_validate(TASK), segments=list(segments),
        turns=[called, answered], timings=Timings(eval=0.125), endpoint=None, node=None,
        error=None if status.scored else RolloutError(reason="SandboxLost", message="it is gone"),
    )  # fmt: skip


def test_a_session_is_a_request_with_the_name_of_the_session_and_the_limits_of_the_trainer() -> None:
    request = request_of(ROW, SAMPLING, SETTINGS)
    assert (request.id, request.group, request.pool, request.mode) == ("verl-a-b-2", "verl-a-b", "demo", "train")
    assert request.task.model_dump() == TASK
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.max_tokens) == (0.7, None, 8)
    assert request.budgets == Budgets(context_tokens=12)
    assert request.min_weights_version == "step4"
    row = {**ROW, "rollyard": None, "extra_info": {"rollyard": {"task": TASK}}, "global_steps": 9}
    assert request_of(row, SAMPLING, SETTINGS).id == request.id, (
        "a resumed trainer asks for the session in a later step"
    )


def test_the_row_counts_before_the_options_and_the_options_before_the_trainer() -> None:
    options = {"agent": {"max_turns": 3}, "sampling": {"temperature": 0.5, "logprobs": "processed"}}
    row = {**ROW, "rollyard": {"task": TASK, "sampling": {"logprobs": "raw"}}}
    request = request_of(row, {**SAMPLING, "top_k": 20}, dataclasses.replace(SETTINGS, request=options))
    assert (request.agent.max_turns, request.sampling.temperature) == (3, 0.5)
    assert (request.sampling.logprobs, request.sampling.top_k) == ("raw", 20)


@pytest.mark.parametrize(
    ("row", "words"),
    [({"rollyard": None}, "the column `rollyard`"), ({"rollyard": {"task": TASK, "group": "g"}}, "`rollyard.group`")],
)
def test_a_row_that_cannot_be_run_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        request_of({**ROW, **row}, SAMPLING, SETTINGS)
    with pytest.raises(Invalid, match=r"set trainer\.use_v1=True"):
        request_of({"rollyard": {"task": TASK}}, SAMPLING, SETTINGS)


@pytest.mark.parametrize(
    ("step", "every", "mode", "version"),
    [(1, 1, "train", None), (2, 1, "train", "step1"), (2, 1, "eval", "step2"), (10, 5, "train", "step5")],
)
def test_rollouts_wait_for_the_newest_checkpoint_of_the_trainer(
    step: int, every: int, mode: Any, version: str | None
) -> None:
    settings = dataclasses.replace(SETTINGS, versions=CheckpointVersions(every=every), mode=mode)
    row = {**ROW, "global_steps": step}
    assert request_of(row, SAMPLING, settings).min_weights_version == version
    settings = dataclasses.replace(settings, wait_for_weights=False)
    assert request_of(row, SAMPLING, settings).min_weights_version is None


def test_each_segment_with_sampled_tokens_is_a_sample() -> None:
    made = samples_of(
        trajectory(segment("0011011", prompt=2), segment("000", prompt=3), segment("01", prompt=1, version="3f2a")),
        SETTINGS, logprobs=True,
    )  # fmt: skip
    first, second = made
    assert (first["prompt_ids"], first["response_ids"]) == ([0, 1], [2, 3, 4, 5, 6])
    assert first["response_mask"] == [1, 1, 0, 1, 1]
    assert first["response_logprobs"] == [-0.5, -0.5, 0.0, -0.5, -0.5]
    assert (second["prompt_ids"], second["response_ids"]) == ([0], [1])
    assert [sample["reward_score"] for sample in made] == [0.25, 0.25]
    assert first["num_turns"] == 4, "the prompt, two turns, and one result of tools"
    assert first["metrics"] == {"generate_sequences": 1.5, "tool_calls": 0.5, "compute_score": 0.125}
    steps = [(s["extra_fields"]["min_global_steps"], s["extra_fields"]["max_global_steps"]) for s in made]
    assert steps == [(4, 4), (0, 0)], "a version that is not a checkpoint is that of the pool's own model"
    assert first["extra_fields"]["reward_extra_info"] == {"correct": 1.0}
    (without,) = samples_of(trajectory(segment("01", prompt=1)), SETTINGS, logprobs=False)
    assert without["response_logprobs"] is None


def test_the_rewards_of_turns_are_turn_scores() -> None:
    played = trajectory(segment("0011011", prompt=2))
    first, last = (turn.model_copy(update={"tool_results": []}) for turn in played.turns)
    turns = [first.model_copy(update={"observation": "higher", "reward": 0.25}), last]
    (sample,) = samples_of(played.model_copy(update={"turns": turns}), SETTINGS, logprobs=True)
    assert sample["extra_fields"]["turn_scores"] == [0.25]
    assert sample["num_turns"] == 4, "the prompt, two turns, and one observation"


def test_a_long_segment_is_cut_and_the_end_of_a_long_prompt_begins_the_response() -> None:
    cut, long_prompt, tail = (
        samples_of(trajectory(one), SETTINGS, logprobs=True)[0]
        for one in (segment("00" + "1" * 20, prompt=2), segment("0000001001", prompt=6), segment("0100", prompt=1))
    )
    assert (cut["prompt_ids"], cut["response_ids"]) == ([0, 1], list(range(2, 10)))
    assert (long_prompt["prompt_ids"], long_prompt["response_ids"]) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert long_prompt["response_mask"] == [0, 0, 1, 0, 0, 1]
    assert tail["response_ids"] == [1], "verl puts the reward on the last token of a response"


@pytest.mark.parametrize("status", [Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED])
def test_a_fault_is_an_error_and_no_reward(status: Status) -> None:
    with pytest.raises(NoReward, match=f"rollout verl-a-b-2 ended {status}: SandboxLost: it is gone"):
        samples_of(trajectory(segment("01", prompt=1), status=status), SETTINGS, logprobs=True)
    with pytest.raises(NoReward, match="no sampled token"):
        samples_of(trajectory(segment("0" * 20 + "1", prompt=20)), SETTINGS, logprobs=True)


async def test_the_sessions_of_a_process_share_a_client_until_the_last_one_ends(tmp_path: Path) -> None:
    file = tmp_path / "config"
    named = {"name": "a", "cluster": {"server": "http://127.0.0.1:1"}, "user": {"token": "t"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    file.write_text(json.dumps({"clusters": [named], "users": [named], "contexts": [context], "current-context": "a"}))
    async with shared_client(str(file)) as first:
        async with shared_client(str(file)) as second:
            assert second is first
        assert not first._http._session.closed
    assert first._http._session.closed
    async with shared_client(str(file)) as later:
        assert later is not first
