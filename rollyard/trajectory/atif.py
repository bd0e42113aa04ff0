"""Trajectories in Harbor's Agent Trajectory Interchange Format (ATIF), version 1.8. Pure.

A turn is one step of the agent, with the results of its tools as its observation, and with the token ids that the model
got and sampled. A turn that another rollout sampled, before a fork, is marked as copied context: nobody should train on it.
"""

from __future__ import annotations

from typing import Any

from rollyard.trajectory.segment import Segment
from rollyard.trajectory.trajectory import Trajectory
from rollyard.trajectory.turn import Turn

SCHEMA_VERSION = "ATIF-v1.8"
_STATEMENTS = ("statement", "problem", "instruction", "question", "prompt")
"""Fields of a task that may have its text for the agent, the first one that is there."""


def atif(trajectory: Trajectory, version: str) -> dict[str, Any]:
    """Return the document. `version`: of Rollyard."""
    turns = trajectory.turns
    steps = [{"step_id": 1, "source": "user", "message": _statement(trajectory)}]
    steps += [_step(number, turn, _segment(trajectory, turn)) for number, turn in enumerate(turns, start=2)]
    about = trajectory.model_dump(mode="json", exclude={"segments", "turns"}, exclude_none=True)
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trajectory.id,
        "trajectory_id": f"{trajectory.namespace}/{trajectory.id}",
        "agent": {"name": "rollyard", "version": version},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.prompt_length for turn in turns),
            "total_completion_tokens": sum(turn.response_length for turn in turns),
            "total_steps": len(steps),
        },
        "extra": about,
    }


def _statement(trajectory: Trajectory) -> str:
    fields = trajectory.task.fields
    found = next((fields[name] for name in _STATEMENTS if isinstance(fields.get(name), str)), None)
    return found or trajectory.task.canonical()


def _segment(trajectory: Trajectory, turn: Turn) -> Segment | None:
    """Return the segment with the turn's tokens; None for a turn that no model sampled, as in a check."""
    return trajectory.segments[turn.segment] if turn.segment < len(trajectory.segments) else None


def _step(number: int, turn: Turn, segment: Segment | None) -> dict[str, Any]:
    ids = [f"call_{number}_{i}" for i in range(len(turn.tool_calls))]
    calls = [
        {"tool_call_id": id, "function_name": str(call.get("name", "")), **_arguments(call.get("arguments"))}
        for id, call in zip(ids, turn.tool_calls, strict=True)
    ]
    results: list[dict[str, Any]] = [
        {"content": text, **({"source_call_id": ids[i]} if i < len(ids) else {})}
        for i, text in enumerate(turn.tool_results)
    ]
    if turn.observation is not None:
        results.append({"content": turn.observation})
    about = turn.model_dump(include={"finish_reason", "timings", "reward", "constraint"}, exclude_none=True)
    step: dict[str, Any] = {"step_id": number, "source": "agent", "message": turn.text, "extra": about}
    if calls:
        step["tool_calls"] = calls
    if results:
        step["observation"] = {"results": results}
    if segment is None or not turn.response_length:
        return {**step, "llm_call_count": 0}
    start, end = turn.prompt_length, turn.prompt_length + turn.response_length
    metrics: dict[str, Any] = {
        "prompt_tokens": turn.prompt_length,
        "completion_tokens": turn.response_length,
        "prompt_token_ids": segment.token_ids[:start],
        "completion_token_ids": segment.token_ids[start:end],
    }
    mask, logprobs = segment.loss_mask[start:end], [p for p in segment.logprobs[start:end] if p is not None]
    if all(mask):
        metrics["logprobs"] = logprobs
    if any(mask):
        versions = dict.fromkeys(v for v in segment.weights_version[start:end] if v is not None)
        metrics["extra"] = {"weights_versions": list(versions)}
    else:
        step["is_copied_context"] = True
    return {**step, "llm_call_count": 1, "metrics": metrics}


def _arguments(found: Any) -> dict[str, Any]:
    """Return a call's arguments as an object. Arguments that are none stay in `extra`."""
    return {"arguments": found} if isinstance(found, dict) else {"arguments": {}, "extra": {"arguments": found}}
