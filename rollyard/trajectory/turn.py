"""Turns: model calls with what followed them."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.base import WireModel


class Turn(WireModel):
    """One model call, and the tool results or the environment's reply that followed. The text is for people; the tokens
    are in the segments."""

    segment: int
    prompt_length: int
    response_length: int
    text: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = []
    tool_results: list[str] = []
    failed_calls: list[int] | None = None
    """Places in `tool_results`, from 0, of calls that failed: a command with an exit code other than 0, a Python error, a
    time-out, a refused edit, a call that cannot be read. Null: not known, as for the calls of a harness."""
    timings: dict[str, float] = {}
    """Seconds of the turn by part: `model`, `tools`, `environment`."""
    observation: str | None = None
    """Text with which the task's environment replied; null if it did not reply, or gave a reward alone. A reply that ends
    the conversation is not shown to the model."""
    reward: float | None = None
    """Reward that the task's environment gave for the turn; null if it gave none."""
    constraint: str | None = None
    """Form to which the turn was constrained while it was sampled, such as `json_schema` or `tool_calls`; null: none."""
