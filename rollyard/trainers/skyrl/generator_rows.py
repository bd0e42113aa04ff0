"""Rows of a SkyRL batch as rollout requests, and trajectories as the rows of its output. Pure functions.

An input row is one sample: rows with the same `instance_id` are a group. An output row is one token sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rollyard.kinds.rollout import RolloutRequest, Sampling, Status
from rollyard.kinds.row_request import request_of_row
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.filled_rewards import filled
from rollyard.trajectory import Segment, Trajectory, most_sampled, sampled_tokens

REMEDY = 'add a column `rollyard` to the dataset: {"task": {"kind": "math", "problem": …, "answer": …}}'
IGNORED_SAMPLING = frozenset(["logprobs", "min_tokens", "skip_special_tokens", "include_stop_str_in_output"])
"""Parameters of SkyRL that have no effect. Each turn's tokens and logprobs are recorded anyway, and the recorded tokens
of a turn include those of the text that ended the turn. `min_tokens` is 1 in every call of SkyRL, because its own
generator needs a response that is not empty."""


def positions_by_instance(batch: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the positions of the rows of each instance. Raises ValueError for a batch without ids."""
    if not batch.get("trajectory_ids"):
        raise ValueError("the batch has no `trajectory_ids`; make it with SkyRL's `prepare_generator_input`")
    found: dict[str, list[int]] = {}
    for position, named in enumerate(batch["trajectory_ids"]):
        found.setdefault(named.instance_id, []).append(position)
    return found


def group_request(
    batch: Mapping[str, Any],
    positions: Sequence[int],
    *,
    pool: str,
    name: str | None,
    fields: Mapping[str, Any],
    versions: CheckpointVersions | None,
) -> RolloutRequest:
    """Make one request for the rows of an instance. `name`: the group's id. Raises Invalid.

    `fields`: fields of a rollout request for all rows.
    """
    extras = (batch.get("env_extras") or [{}] * len(batch["prompts"]))[positions[0]]
    about = batch.get("batch_metadata")
    evaluates = about is not None and about.training_phase == "eval"
    # SkyRL counts the step that it works on; its evaluation comes after the step.
    done = None if about is None or about.global_step is None else about.global_step - (0 if evaluates else 1)
    sampling = {**sampling_fields(batch.get("sampling_params") or {}), **fields.get("sampling", {})}
    weights = versions.required(done) if versions is not None and done is not None else None
    return request_of_row(
        extras,
        extras.get("task"),
        noun="row",
        remedy=REMEDY,
        set_by_bridge={"id": name, "n": len(positions)},
        defaults={
            "pool": pool,
            "mode": "eval" if evaluates else "train",
            "min_weights_version": weights,
            **fields,
            "sampling": sampling,
        },
    )


def sampling_fields(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return SkyRL's sampling parameters, which have vLLM's names, as fields of `Sampling`."""
    given = {k: v for k, v in params.items() if v is not None and k not in IGNORED_SAMPLING}
    if given.get("top_k", -1) < 1:
        given.pop("top_k", None)
    ours = {k: v for k, v in given.items() if k in Sampling.model_fields}
    extra = {k: v for k, v in given.items() if k not in ours}
    return ours | ({"extra": extra} if extra else {})


def group_name(run: str, batch: Mapping[str, Any], instance: str) -> str | None:
    """Return an id that the same call gets again after a restart; None for a batch without a training step."""
    about = batch.get("batch_metadata")
    if about is None or about.global_step is None:
        return None
    return f"{run}-{about.training_phase}-{about.global_step}-{instance}"


def output_of(
    batch: Mapping[str, Any],
    trajectories: Sequence[Trajectory],
    *,
    step_wise: bool,
    versions: CheckpointVersions | None,
    metrics_of: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """Make SkyRL's `GeneratorOutput`. `trajectories`: one for each row of the batch, in its order.

    `metrics_of`: SkyRL's `get_rollout_metrics`. It gets the rollouts with a reward.
    """
    ids = batch["trajectory_ids"]
    rewards = filled([t.reward for t in trajectories], [named.instance_id for named in ids])
    parts = [segments_of(t, step_wise=step_wise) for t in trajectories]
    rows = [(i, segment) for i, segments in enumerate(parts) for segment in segments or (None,)]
    ends = {end - 1 for end in accumulate(max(len(segments), 1) for segments in parts)}
    output: dict[str, Any] = {
        "prompt_token_ids": [s.token_ids[: s.prompt_length] if s else [0] for _, s in rows],
        "response_ids": [s.token_ids[s.prompt_length :] if s else [0] for _, s in rows],
        "rewards": [rewards[i] for i, _ in rows],
        "loss_masks": [s.loss_mask[s.prompt_length :] if s else [0] for _, s in rows],
        "stop_reasons": [stop_reason(trajectories[i]) for i, _ in rows],
        "rollout_logprobs": [[p or 0.0 for p in s.logprobs[s.prompt_length :]] if s else [0.0] for _, s in rows],
        "trajectory_ids": [ids[i] for i, _ in rows],
        "is_last_step": [number in ends for number in range(len(rows))] if step_wise else None,
        "trajectory_generation_times": [seconds_of(trajectories[i]) for i, _ in rows],
        "trajectory_time_splits": None,
        "rollout_expert_indices": None,
        "rollout_sample_support": None,
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }
    whole = [number for number, (_, segment) in enumerate(rows) if segment]
    columns = [[output[name][number] for number in whole] for name in ("response_ids", "rewards")]
    masks = [output["loss_masks"][number] for number in whole]
    output["rollout_metrics"] = {
        **(metrics_of(*columns, loss_masks=masks) if whole else {}),
        **own_metrics(trajectories, [segment for segments in parts for segment in segments], versions),
    }
    return output


def segments_of(trajectory: Trajectory, *, step_wise: bool) -> list[Segment]:
    """Return the segments to train on. There is none if the rollout has no reward."""
    best = most_sampled(trajectory.segments)
    if trajectory.reward is None or best is None:
        return []
    return [s for s in trajectory.segments if any(s.loss_mask)] if step_wise else [trajectory.segments[best]]


def stop_reason(trajectory: Trajectory) -> str:
    """Return the reason in SkyRL's words."""
    return {Status.COMPLETED: "stop", Status.TRUNCATED: "length"}.get(trajectory.status, "error")


def seconds_of(trajectory: Trajectory) -> float:
    """Return the seconds of the rollout's last attempt, without the time in the queue."""
    timings = trajectory.timings
    return sum(seconds or 0.0 for seconds in (timings.init, timings.run, timings.eval))


def own_metrics(
    trajectories: Sequence[Trajectory], kept: Sequence[Segment], versions: CheckpointVersions | None
) -> dict[str, float]:
    """Return our metrics. When SkyRL joins outputs, it takes the mean, minimum or maximum where the name says so, and
    else the sum."""
    scored = [t for t in trajectories if t.reward is not None]
    metrics: dict[str, float] = {
        "rollout/without_reward": len(trajectories) - len(scored),
        "rollout/left_out_tokens": sum(sampled_tokens(t.segments) for t in scored) - sampled_tokens(kept),
    }
    if scored:
        metrics["rollout/turns_mean"] = sum(len(t.turns) for t in scored) / len(scored)
    used = {version for segment in kept for version in segment.weights_version if version is not None}
    steps = [n for version in used if versions is not None and (n := versions.number(version)) is not None]
    if steps:
        metrics |= {"rollout/weights_step_min": min(steps), "rollout/weights_step_max": max(steps)}
    return metrics
