"""What a session may do: how it samples, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.kinds.rollout import Sampling

LEAST_BODY, USUAL_BODY, MOST_BODY = 1 << 20, 8 << 20, 64 << 20
BODY_BYTES_A_TOKEN = 64


@dataclass(frozen=True)
class SessionConfig:
    model: str
    sampling: Sampling
    fixed: bool = True
    """The sampling holds whatever callers ask for."""
    max_calls: int | None = None
    tool_parser: str | None = None
    sample_index: int = 0
    max_tokens: int = 4 << 20
    """Of all segments together: as JSON they are below what a result may have."""
    max_at_once: int | None = None
    """Calls in flight."""
    context: int | None = None
    """Tokens that a prompt may have, where that is known before an engine says so."""

    @property
    def max_body(self) -> int:
        """Bytes of a request: a longer one does not fit the context, however its tokens are."""
        if self.context is None:
            return USUAL_BODY
        return min(max(LEAST_BODY, BODY_BYTES_A_TOKEN * self.context), MOST_BODY)
