"""Turns that are saved while RUN goes on, so that another node agent can go on after them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from rollyard.kinds.base import WireModel
from rollyard.trajectory.role_call import RoleCall
from rollyard.trajectory.turn import Turn


class SavedTurn(WireModel):
    """A turn after which its conversation went on, as it was sampled."""

    turn: Turn
    token_ids: list[int]
    """Sampled ids."""
    logprobs: list[float | None]
    weights_versions: list[str | None]
    prompt_digest: str
    """Digest of the prompt's ids behind the turn before in the same segment, so that the prompt can be recognised."""
    run_seconds: float = 0.0
    """Seconds of RUN's budget that were used at the end of the turn. A wait for a model server uses none."""
    reply_role: Literal["user", "tool"] = "user"
    """Role of the message with the environment's reply."""
    environment: str | None = None
    """State of the task's environment after the turn, as the environment has saved it. Null: there is no environment."""
    conversation: int = 0
    """Number of the conversation, from 0 on, in the order in which a task kind's own loop began them."""
    max_tokens: int | None = None
    """Greatest length of the turn that a task kind's own loop asked for."""
    call: dict[str, Any] | None = None
    """Call of a command's session, as `StoredCall` has it, with all its sampled turns. Then `turn` is the last of them, to look
    at, and `token_ids`, `logprobs` and `prompt_digest` are empty."""
    role_calls: list[RoleCall] = []
    """Calls of models by role that the environment made since the turn before."""


def prompt_digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=12).hexdigest()
