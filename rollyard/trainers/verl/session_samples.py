"""Sessions of verl as rollout requests, and trajectories as verl's samples. Pure functions, without verl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollyard.core.errors import Invalid, NoReward
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.row_request import request_of_row
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trajectory import Segment, Trajectory, Turn

REMEDY = 'write it in the column `rollyard`, as JSON text such as {"task": {"kind": "math", "problem": "1+1?", "answer": "2"}}'


@dataclass(frozen=True)
class LoopSettings:
    """Same values for all sessions: options of the agent loop, and verl's own limits."""

    pool: str
    prompt_length: int
    response_length: int
    versions: CheckpointVersions
    wait_for_weights: bool = True
    """Whether rollouts wait for the newest checkpoint that verl has written."""
    mode: Literal["train", "eval"] = "train"
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a rollout request that all rows share."""


def request_of(row: Mapping[str, Any], sampling: Mapping[str, Any], settings: LoopSettings) -> RolloutRequest:
    """Make the request of a session. `row`: the arguments that verl passes to an agent loop. Raises Invalid.

    verl keeps a prompt's `uid` in its checkpoints. So a session that a resumed trainer asks for again has the same id.
    """
    if "session_id" not in row:
        raise Invalid("only the v1 trainer of verl runs sessions; set trainer.use_v1=True")
    given = row.get("rollyard") or (row.get("extra_info") or {}).get("rollyard")
    own = {
        "temperature": float(sampling["temperature"]),
        "top_p": float(sampling["top_p"]),
        "top_k": int(sampling["top_k"]) if sampling["top_k"] > 0 else None,  # verl and vLLM write -1 for all tokens
        "max_tokens": settings.response_length,
    }
    # In step N verl asks for the rollouts of the training before the N-th update, and validates after it.
    done = int(row["global_steps"]) - (settings.mode == "train")
    if sampling.get("repetition_penalty", 1.0) != 1.0:
        own["repetition_penalty"] = float(sampling["repetition_penalty"])
    defaults = {
        "pool": settings.pool,
        "mode": settings.mode,
        "budgets": {"context_tokens": settings.prompt_length + settings.response_length},
        "min_weights_version": settings.versions.required(done) if settings.wait_for_weights else None,
        **settings.request,
        "sampling": {**own, **settings.request.get("sampling", {})},
    }
    group = f"verl-{row['uid']}"
    return request_of_row(
        {"rollyard": given}, None, noun="row", remedy=REMEDY, defaults=defaults,
        set_by_bridge={"id": f"{group}-{int(row['session_id'])}", "group": group},
    )  # fmt: skip


def samples_of(trajectory: Trajectory, settings: LoopSettings, *, logprobs: bool) -> list[dict[str, Any]]:
    """Return the fields of an `AgentLoopOutput` for each segment with sampled tokens. Raises NoReward.

    verl takes the advantage from the last sample, so a sample without sampled tokens would make the advantage 0.
    """
    if trajectory.reward is None:
        error = trajectory.error
        why = f": {error.reason}: {error.message}" if error is not None else ""
        raise NoReward(f"rollout {trajectory.id} ended {trajectory.status}{why}")
    cut = [_cut(segment, settings) for segment in trajectory.segments]
    samples = [_sample(trajectory, segment, settings, logprobs=logprobs) for segment in cut if any(segment.loss_mask)]
    if not samples:
        raise NoReward(f"rollout {trajectory.id} has no sampled token within verl's prompt and response lengths")
    return samples


def _cut(segment: Segment, settings: LoopSettings) -> Segment:
    """Cut a segment to verl's lengths, and behind its last sampled token, because verl puts the reward on the last token.

    If a prompt is too long for a prompt of verl, its end becomes the beginning of the response.
    """
    prompt = min(segment.prompt_length, settings.prompt_length)
    sampled = [i for i, mask in enumerate(segment.loss_mask[: prompt + settings.response_length]) if mask]
    end = sampled[-1] + 1 if sampled else prompt
    return Segment(
        token_ids=segment.token_ids[:end],
        loss_mask=segment.loss_mask[:end],
        logprobs=segment.logprobs[:end],
        weights_version=segment.weights_version[:end],
        prompt_length=prompt,
    )


def _sample(trajectory: Trajectory, segment: Segment, settings: LoopSettings, *, logprobs: bool) -> dict[str, Any]:
    n = segment.prompt_length
    versions = list(dict.fromkeys(version for version in segment.weights_version if version is not None))
    steps = [settings.versions.number(version) or 0 for version in versions]  # the pool's own model is step 0
    return {
        "prompt_ids": segment.token_ids[:n],
        "response_ids": segment.token_ids[n:],
        "response_mask": segment.loss_mask[n:],
        "response_logprobs": [0.0 if p is None else p for p in segment.logprobs[n:]] if logprobs else None,
        "reward_score": trajectory.reward,
        "num_turns": 1 + sum(1 + bool(turn.tool_results or turn.observation) for turn in trajectory.turns),
        "metrics": {
            "generate_sequences": _seconds(trajectory.turns, "model"),
            "tool_calls": _seconds(trajectory.turns, "tools"),
            "compute_score": trajectory.timings.eval or 0.0,
        },
        "extra_fields": {
            "min_global_steps": min(steps),
            "max_global_steps": max(steps),
            # verl adds a column `reward` itself
            "reward_extra_info": {name: value for name, value in trajectory.metrics.items() if name != "reward"},
            "turn_scores": [turn.reward for turn in trajectory.turns if turn.reward is not None],
            "tool_rewards": [],
            "rollout_id": trajectory.id,
            "rollout_status": str(trajectory.status),
            "weights_versions": versions,
        },
    }


def _seconds(turns: list[Turn], part: str) -> float:
    return sum(turn.timings.get(part, 0.0) for turn in turns)
