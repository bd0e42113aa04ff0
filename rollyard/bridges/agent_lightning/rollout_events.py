"""Rollouts of Agent Lightning as our requests, and trajectories as its events. Pure functions.

The input of a rollout names the task: in `rollyard`, an object with fields of a rollout request or its JSON text, or by
being a task.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.row_request import request_of_row
from rollyard.trajectory import Trajectory, Turn

_STEP = re.compile(r"(\d+)$")


def request_of(rollout: Mapping[str, Any], pool: str, attempt: int) -> RolloutRequest:
    """Make the request of an attempt. `rollout`: one of Agent Lightning's. Raises Invalid."""
    given = rollout.get("input")
    seconds = (rollout.get("config") or {}).get("timeout_seconds")
    budgets = {"budgets": {"run_seconds": seconds}} if seconds else {}
    # Rollouts are in the memory of Agent Lightning's server, so another server may use the same ids again.
    name = f"{rollout['rollout_id']}:{rollout['status']['created_at']}"
    return request_of_row(
        given if isinstance(given, Mapping) else {},
        given,
        noun="input",
        remedy='give it a `kind`, or the field `rollyard`: {"task": {"kind": …}}',
        set_by_bridge={"id": f"agl-{hashlib.sha256(name.encode()).hexdigest()[:24]}-{attempt}"},
        defaults={"pool": pool, "mode": "train" if rollout.get("is_train", True) else "eval", **budgets},
    )


def events_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Make the events of a rollout with a reward: its names, one `model_request` for each turn, and the reward."""
    names = {"rollout_id": trajectory.id, "status": str(trajectory.status), "metrics": trajectory.metrics}
    return [
        {"event_type": "rollyard", "data": names},
        *({"event_type": "model_request", "data": _model_request(trajectory, turn)} for turn in trajectory.turns),
        {"event_type": "reward", "data": {"value": trajectory.reward, "source": "rollyard"}},
    ]


def step_of(version: str | None) -> int | None:
    """Return the number at the end of a weights version, such as 12 of `step12`; None without one."""
    found = _STEP.search(version or "")
    return int(found[1]) if found else None


def _model_request(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    """Make the data of a model call. Its version is that of the turn's first token."""
    segment, start = trajectory.segments[turn.segment], turn.prompt_length
    end = start + turn.response_length
    version = segment.weights_version[start] if turn.response_length else None
    return {
        "model": trajectory.endpoint or "policy",
        "model_version": step_of(version),
        "server": {"model": trajectory.endpoint or "policy", "version": step_of(version)},
        "request": {},
        "response": {
            "object": "chat.completion",
            "prompt_token_ids": segment.token_ids[:start],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": turn.text},
                    "token_ids": segment.token_ids[start:end],
                    "logprobs": {"token_logprobs": segment.logprobs[start:end]},
                    "finish_reason": turn.finish_reason,
                }
            ],
        },
        "weights_version": segment.weights_version[start:end],
        "finish_reason": turn.finish_reason,
        "http_status": 200,
        "status": "ok",
    }
