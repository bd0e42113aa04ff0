"""Rows of NeMo Gym as rollout requests, and trajectories as its responses. Pure functions.

A row is a JSON object. NeMo Gym sends it in one of two forms. The flat form is the row itself. In the episode form the
row stands in `task.task_input`, beside the ids `episode_id` and `task.task_id`. The row names the task in `rollyard`, an
object with fields of a rollout request, or in `verifier_metadata`, an object that is a task.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.core.errors import ApiError, BadRequest, Invalid, TooLarge
from rollyard.kinds.failure_table import ENDINGS
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.row_request import request_of_row
from rollyard.trajectory import Trajectory, Turn, most_sampled, sampled_tokens

EXAMPLE = '{"responses_create_params": {"input": []}, "rollyard": {"task": {"kind": "math", "problem": "1+1?", "answer": "2"}}}'
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
"""Names of `responses_create_params` that set the sampling, and our names for them."""
STAGES = {Stage.INIT: "seed", Stage.RUN: "agent", Stage.EVAL: "verification"}
"""Our stages in NeMo Gym's words for the stage of a failure."""


@dataclass(frozen=True)
class Row:
    body: Mapping[str, Any]
    """The whole body of the call."""

    @property
    def key(self) -> str:
        """Name that is the same exactly for equal bodies."""
        text = json.dumps(self.body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]

    @property
    def is_episode(self) -> bool:
        return isinstance(self.body.get("episode_id"), Mapping)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fields of the dataset's row. Raises BadRequest if the body has neither form."""
        if not self.is_episode:
            return self.body
        task = self.body.get("task")
        given = task.get("task_input") if isinstance(task, Mapping) else None
        if not isinstance(given, Mapping):
            raise BadRequest("an episode's row stands in `task.task_input`, and there is none")
        data = given.get("task_data")
        return {**given, **data} if isinstance(data, Mapping) else given


def request_of(row: Row, pool: str, times: int) -> RolloutRequest:
    """Make the request. `times`: how often results of this row were handed out. Raises Invalid, BadRequest."""
    fields = row.fields
    params = fields.get("responses_create_params")
    params = params if isinstance(params, Mapping) else {}
    sampling = {ours: params[theirs] for theirs, ours in SAMPLING.items() if params.get(theirs) is not None}
    return request_of_row(
        fields,
        fields.get("verifier_metadata"),
        noun="row",
        remedy=f"write it in the field `rollyard`, such as {EXAMPLE}",
        set_by_bridge={"id": f"ng-{row.key}-{times}"},
        defaults={"pool": pool, "sampling": sampling},
    )


def response_of(row: Row, trajectory: Trajectory, now: float) -> dict[str, Any]:
    """Make the answer to `POST /run`. A rollout without a reward becomes a failure, which NeMo Gym does not score.

    `now`: Unix seconds.
    """
    if trajectory.reward is None:
        error = trajectory.error
        return failure_of(
            row,
            kind=error.reason if error is not None else str(trajectory.status),
            message=error.message if error is not None else f"the rollout ended {trajectory.status}",
            terminal=trajectory.status is Status.FAILED,
            stage=STAGES.get(error.stage) if error is not None and error.stage is not None else None,
            rollout=trajectory.id,
        )
    best = most_sampled(trajectory.segments)
    result = {
        "responses_create_params": row.fields.get("responses_create_params", {"input": []}),
        "response": {
            "id": f"resp_{trajectory.id}",
            "object": "response",
            "created_at": now,
            "model": trajectory.endpoint or "policy",
            "status": "completed" if trajectory.status is Status.COMPLETED else "incomplete",
            "output": [
                item for number, turn in enumerate(trajectory.turns) for item in _items(trajectory, best, number, turn)
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        },
        "reward": trajectory.reward,
        "rollout_id": trajectory.id,
        "rollout_status": str(trajectory.status),
        "left_out_tokens": sampled_tokens(trajectory.segments)
        - (sum(trajectory.segments[best].loss_mask) if best is not None else 0),
        **{f"metric/{name}": value for name, value in trajectory.metrics.items()},
    }
    return _in_form(row, {"result": result}) if row.is_episode else result


def failure_of(
    row: Row, *, kind: str, message: str, terminal: bool, stage: str | None = None, rollout: str | None = None
) -> dict[str, Any]:
    """Make the answer for a row without a reward. `terminal`: NeMo Gym does not send the row again."""
    ending = ENDINGS.get(kind)
    shared = {"failure_kind": ending.nemo_gym} if ending is not None and ending.nemo_gym is not None else {}
    if row.is_episode:
        named = {"failure_reason": f"{kind}: {message}"[:2000], "terminal": terminal, **shared}
        return _in_form(row, {"failure": named | ({"stage": stage} if stage is not None else {})})
    found = {"_ng_failure_class": kind, "_ng_failure_message": message, "_ng_failure_terminal": terminal, **shared}
    return found | ({"rollout_id": rollout} if rollout is not None else {})


def failure_of_error(row: Row, error: ApiError) -> dict[str, Any]:
    """Make the answer for a row that was refused. It is sent again unless the row itself is at fault."""
    terminal = isinstance(error, (BadRequest, Invalid, TooLarge))
    return failure_of(row, kind=error.reason, message=str(error), terminal=terminal, stage="admission")


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the answer to `POST /aggregate_metrics`: means of each number, over the rows with a reward."""
    scored = [row for row in rows if _is_number(row.get("reward")) and "_ng_failure_class" not in row]
    names = sorted(
        {name for row in scored for name, value in row.items() if _is_number(value) and not name.startswith("_")}
    )
    values = {name: [float(row[name]) for row in scored if _is_number(row.get(name))] for name in names}
    means = {f"mean/{name}": sum(value / len(found) for value in found) for name, found in values.items()}
    means["rows_without_reward"] = float(len(rows) - len(scored))
    key = {name: value for name, value in means.items() if name in ("mean/reward", "rows_without_reward")}
    return {"group_level_metrics": [], "agent_metrics": means, "key_metrics": key}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _in_form(row: Row, content: dict[str, Any]) -> dict[str, Any]:
    task = row.body.get("task")
    task_id = task.get("task_id") if isinstance(task, Mapping) else None
    return {"episode_id": row.body["episode_id"], "task_id": task_id, **content}


def _items(trajectory: Trajectory, best: int | None, number: int, turn: Turn) -> list[dict[str, Any]]:
    """Make a turn's items: its text, its tool calls, then their results. The turn's tokens are on its last own item."""
    name = f"{trajectory.id}_{number}"
    text = {"type": "output_text", "text": turn.text, "annotations": []}
    own: list[dict[str, Any]] = [
        {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    ]
    for i, call in enumerate(turn.tool_calls):
        arguments = call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"])
        made = {"id": f"fc_{name}_{i}", "call_id": f"call_{name}_{i}", "name": call["name"], "arguments": arguments}
        own.append({"type": "function_call", "status": "completed", **made})
    if turn.segment == best:
        segment, start = trajectory.segments[turn.segment], turn.prompt_length
        end = start + turn.response_length
        own[-1]["prompt_token_ids"] = segment.token_ids[:start]
        own[-1]["generation_token_ids"] = segment.token_ids[start:end]
        own[-1]["generation_log_probs"] = segment.logprobs[start:end]
    results = [
        {"type": "function_call_output", "call_id": f"call_{name}_{i}", "output": result}
        for i, result in enumerate(turn.tool_results[: len(turn.tool_calls)])
    ]
    return own + results
