"""Samples of slime as rollout requests, and trajectories as its samples. Pure functions, which import nothing of slime.

A sample of slime is one token sequence. A rollout with several segments becomes several samples with one `rollout_id`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.client.advantages import grpo, mean_baseline
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.row_request import request_of_row
from rollyard.trainers.filled_rewards import filled
from rollyard.trajectory import Segment, Trajectory

STATUSES = {
    Status.COMPLETED: "COMPLETED",
    Status.TRUNCATED: "TRUNCATED",
    Status.FAILED: "FAILED",
    Status.INFRA_FAILED: "ABORTED",
    Status.CANCELLED: "ABORTED",
}
REMEDY = 'write it in the row\'s metadata: {"rollyard": {"task": {"kind": "math", "problem": …, "answer": …}}}'
GROUP_BASELINES = frozenset(["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
"""Advantage estimators for which slime subtracts the group's mean."""


def group_request(
    group: Sequence[Any],
    *,
    name: str,
    mode: str,
    pool: str,
    sampling: Mapping[str, Any],
    fields: Mapping[str, Any],
    weights: str | None,
) -> RolloutRequest:
    """Make one request for the samples of one prompt. `name`: the group's id. Raises Invalid.

    `fields`: fields of a rollout request for all groups. `weights`: oldest version of the weights.
    """
    metadata = group[0].metadata or {}
    return request_of_row(
        metadata,
        metadata.get("task"),
        noun="row",
        remedy=REMEDY,
        set_by_bridge={"id": name, "n": len(group)},
        defaults={
            "pool": pool,
            "mode": mode,
            "min_weights_version": weights,
            **fields,
            "sampling": {**sampling, **fields.get("sampling", {})},
        },
    )


def sampling_fields(
    *,
    temperature: float,
    top_p: float,
    top_k: int | None,
    max_tokens: int | None,
    stop: Sequence[str] | str | None,
    stop_token_ids: Sequence[int] | None,
) -> dict[str, Any]:
    """Return sampling parameters of slime as fields of `Sampling`, without those that are not set."""
    given = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k if top_k is not None and top_k > 0 else None,
        "max_tokens": max_tokens,
        "stop": [stop] if isinstance(stop, str) else stop,
        "stop_token_ids": stop_token_ids,
    }
    return {name: value for name, value in given.items() if value is not None}


def samples_of(sample: Any, trajectory: Trajectory) -> list[Any]:
    """Return a copy of slime's sample for each segment to train on.

    A rollout without a reward becomes one sample of one token that slime must not train on (`remove_sample`).
    """
    segments = [s for s in trajectory.segments if any(s.loss_mask)] if trajectory.reward is not None else []
    common = {
        "rollout_id": sample.index,
        "reward": trajectory.reward,
        "status": type(sample).Status[STATUSES[trajectory.status]],
        "metadata": {**(sample.metadata or {}), "rollyard_id": trajectory.id},
    }
    if not segments:
        empty = {"tokens": [0, 0], "response_length": 1, "loss_mask": [0], "rollout_log_probs": [0.0]}
        return [dataclasses.replace(sample, remove_sample=True, weight_versions=[], **empty, **common)]
    return [
        dataclasses.replace(sample, response=text_of(trajectory, segment), **columns_of(segment), **common)
        for segment in segments
    ]


def columns_of(segment: Segment) -> dict[str, Any]:
    """Return a segment as fields of a sample. The mask and the logprobs begin with the response."""
    n = segment.prompt_length
    return {
        "tokens": segment.token_ids,
        "response_length": len(segment.token_ids) - n,
        "loss_mask": segment.loss_mask[n:],
        "rollout_log_probs": [0.0 if logprob is None else logprob for logprob in segment.logprobs[n:]],
        "weight_versions": list(dict.fromkeys(v for v in segment.weights_version if v is not None)),
    }


def text_of(trajectory: Trajectory, segment: Segment) -> str:
    """Return the text of the segment's turns, for slime's log."""
    number = trajectory.segments.index(segment)
    return "\n".join(turn.text for turn in trajectory.turns if turn.segment == number)


def group_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the raw and the normalized reward of each sample: slime's `--custom-reward-post-process-path`.

    slime's own function takes the mean of the whole batch as soon as a group has more samples than `n`, and cannot
    leave out a sample without a reward. Here each group has its own mean, in which a rollout with several segments
    counts once, and a rollout without a reward does not count. Its normalized reward is 0.
    """
    raw = filled([sample.reward for sample in samples], [sample.group_index for sample in samples])
    if args.advantage_estimator not in GROUP_BASELINES or not args.rewards_normalization:
        return raw, raw
    rollouts = {(s.group_index, s.rollout_id): s.reward for s in samples}
    gains: dict[tuple[int, int], float] = {}
    for group in dict.fromkeys(index for index, _ in rollouts):
        keys = [key for key in rollouts if key[0] == group]
        rewards = [float("nan") if rollouts[key] is None else rollouts[key] for key in keys]
        with_std = args.grpo_std_normalization and args.advantage_estimator != "reinforce_plus_plus_baseline"
        found = grpo(rewards, epsilon=1e-6) if with_std else mean_baseline(rewards)
        gains |= dict(zip(keys, map(float, found), strict=True))
    return raw, [gains[s.group_index, s.rollout_id] for s in samples]
