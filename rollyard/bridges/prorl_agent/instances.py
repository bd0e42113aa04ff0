"""Instances of ProRL Agent as rollout requests, and trajectories as its results. Pure functions.

An instance is a JSON object. `data_source` names its handler, which is our task kind. The other fields are the task's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pydantic

from rollyard.core.errors import Invalid
from rollyard.kinds.failure_table import STAGE_TIMEOUT
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.schema.validation import problems_of
from rollyard.trajectory import Trajectory, Turn

NOT_OF_THE_TASK = frozenset(["data_source", "instance_id", "trajectory_id", "ability", "extra_info", "rollyard"])
"""Fields of an instance that name it, or that a trainer keeps in it."""
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_output_tokens": "max_tokens",
    "seed": "seed",
}
"""Names of `sampling_params` that set the sampling, and our names for them."""


def request_of(
    instance: Mapping[str, Any], params: Mapping[str, Any], job: str, pool: str, kinds: Mapping[str, str]
) -> RolloutRequest:
    """Make the request. `job`: id of the job. `kinds`: task kinds by `data_source`. Raises Invalid.

    The instance can name other fields of a rollout request in `rollyard`. `max_iterations` limits the turns and
    `max_model_len` the tokens of the conversation.
    """
    given = instance.get("rollyard")
    if given is not None and not isinstance(given, Mapping):
        raise Invalid("`rollyard` must be a JSON object with fields of a rollout request")
    source = instance.get("data_source")
    if given is not None and "task" in given:
        task = given["task"]
    elif isinstance(source, str):
        task = {"kind": kinds.get(source, source), **_task_fields(instance)}
    else:
        raise Invalid("the instance names no handler; write a task kind of the pool in `data_source`, such as math")
    wanted: dict[str, Any] = {"pool": pool, **(given or {}), "task": task}
    wanted["id"] = rollout_of(job)
    sampling = {ours: params[theirs] for theirs, ours in SAMPLING.items() if params.get(theirs) is not None}
    _default(wanted, "sampling", sampling)
    if params.get("max_iterations") is not None:
        _default(wanted, "agent", {"max_turns": params["max_iterations"]})
    if params.get("max_model_len") is not None:
        _default(wanted, "budgets", {"context_tokens": params["max_model_len"]})
    try:
        return RolloutRequest.model_validate(wanted)
    except pydantic.ValidationError as error:
        raise Invalid(
            f"the instance cannot be run: {'; '.join(map(str, problems_of(RolloutRequest, error)))}"
        ) from None


def rollout_of(job: str) -> str:
    """Return the id of a job's rollout."""
    return f"prorl-{hashlib.sha256(job.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}"


def result_of_trajectory(instance: Mapping[str, Any], trajectory: Trajectory) -> dict[str, Any]:
    """Make the result. Without a reward `resolved` and `reward` are null, and `critical_error` names the stage."""
    error = trajectory.error
    critical = None
    if trajectory.reward is None:
        stage = str(error.stage).lower() if error is not None and error.stage is not None else "run"
        critical = "timeout" if error is not None and error.reason == STAGE_TIMEOUT.reason else stage
    return {
        **_names(instance),
        "job_id": trajectory.id,
        "success": trajectory.reward is not None,
        "resolved": None if trajectory.reward is None else trajectory.reward >= 1.0,
        "reward": trajectory.reward,
        "finish": trajectory.status is Status.COMPLETED,
        "error": None if error is None else f"{error.reason}: {error.message}",
        "critical_error": critical,
        "git_patch": None,
        "messages": _messages(trajectory),
        "tools": [],
        "end_properly": trajectory.status is Status.COMPLETED,
        "metrics": trajectory.metrics,
        "timing": {
            "init": trajectory.timings.init,
            "run": trajectory.timings.run,
            "eval": trajectory.timings.eval,
            "others": trajectory.timings.queued,
        },
    }


def _task_fields(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's fields. An instance in verl's form names the problem in `prompt` and the answer in
    `reward_model`."""
    fields = {name: value for name, value in instance.items() if name not in NOT_OF_THE_TASK}
    prompt, truth = fields.get("prompt"), fields.get("reward_model")
    if "problem" not in fields and isinstance(prompt, list) and isinstance(truth, Mapping) and "ground_truth" in truth:
        texts = [m.get("content") for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
        answer = truth["ground_truth"]
        if not all(isinstance(text, str) for text in texts) or not isinstance(answer, (str, int, float)):
            raise Invalid("the user's messages in `prompt` and `reward_model.ground_truth` must be texts")
        del fields["prompt"], fields["reward_model"]
        fields |= {"problem": "\n".join(map(str, texts)), "answer": str(answer)}
    return fields


def _default(wanted: dict[str, Any], name: str, values: Mapping[str, Any]) -> None:
    """Fill in the values that the object `name` does not have."""
    given = wanted.get(name)
    if values and (given is None or isinstance(given, Mapping)):
        wanted[name] = {**values, **(given or {})}


def _names(instance: Mapping[str, Any]) -> dict[str, Any]:
    return {"instance_id": instance.get("instance_id"), "trajectory_id": instance.get("trajectory_id")}


def _messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Make the messages. The `token_ids` of the messages of one segment, joined in order, are the segment's tokens."""
    messages: list[dict[str, Any]] = []
    last: dict[int, Turn] = {}
    for turn in trajectory.turns:
        messages += [*_before(trajectory, turn, last.get(turn.segment)), _sampled(trajectory, turn)]
        last[turn.segment] = turn
    for segment, turn in last.items():
        if rest := trajectory.segments[segment].token_ids[_end(turn) :]:
            messages.append({"role": "tool", "content": _results(turn), **_tokens(rest)})
    return messages


def _before(trajectory: Trajectory, turn: Turn, last: Turn | None) -> list[dict[str, Any]]:
    """Make the message for the tokens directly before a turn. `last`: the segment's turn before it.

    The text of the first prompt is not stored, so its message has tokens only.
    """
    tokens = trajectory.segments[turn.segment].token_ids[0 if last is None else _end(last) : turn.prompt_length]
    if not tokens:
        return []
    if last is None:
        return [{"role": "user", "content": "", **_tokens(tokens)}]
    role = "tool" if last.tool_results else "user"
    return [{"role": role, "content": _results(last), **_tokens(tokens)}]


def _end(turn: Turn) -> int:
    return turn.prompt_length + turn.response_length


def _results(turn: Turn) -> str:
    observation = [turn.observation] if turn.observation is not None else []
    return "\n".join([*turn.tool_results, *observation])


def _tokens(ids: list[int]) -> dict[str, Any]:
    return {"token_ids": ids, "input_ids": None, "logprobs": None}


def _sampled(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    segment, start, end = trajectory.segments[turn.segment], turn.prompt_length, _end(turn)
    message = {
        "role": "assistant",
        "content": turn.text,
        "token_ids": segment.token_ids[start:end],
        "input_ids": segment.token_ids[:start],
        "logprobs": segment.logprobs[start:end],
        "weights_version": segment.weights_version[start:end],
    }
    return message | ({"tool_calls": turn.tool_calls} if turn.tool_calls else {})
