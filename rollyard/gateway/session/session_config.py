"""Configuration of a session: its sampling and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.kinds.rollout import Sampling
from rollyard.wire.tool_proof import ToolProof

LEAST_BODY, USUAL_BODY, MOST_BODY = 1 << 20, 8 << 20, 64 << 20
BODY_BYTES_A_TOKEN = 64


@dataclass(frozen=True)
class SessionConfig:
    model: str
    sampling: Sampling
    fixed: bool = True
    """True: the session's sampling is used, and callers may only shorten turns."""
    max_calls: int | None = None
    tool_parser: str | None = None
    tools: ToolProof | None = None
    """Whether the parser reads the model's calls; None if unknown."""
    sample_index: int = 0
    max_tokens: int = 4 << 20
    """Calls are refused when all segments together have this many tokens. As JSON, this many tokens stay below the size
    limit of a result."""
    max_at_once: int | None = None
    """Greatest number of calls in flight."""
    context: int | None = None
    """Greatest length of the context in tokens; None if only the model sets a limit."""


def max_body(context: int | None) -> int:
    """Return the greatest length of a request in bytes: `BODY_BYTES_A_TOKEN` for each token of the context, within bounds;
    `USUAL_BODY` if the context is not known."""
    return USUAL_BODY if context is None else min(max(LEAST_BODY, BODY_BYTES_A_TOKEN * context), MOST_BODY)
