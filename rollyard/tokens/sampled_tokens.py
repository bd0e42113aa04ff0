"""Answer of a model, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollyard.core.errors import EndpointLost
from rollyard.kinds.rollout import Sampling

Likeliest = tuple[tuple[int, float], ...]
"""(id, logprob) of the likeliest tokens at one position, the likeliest first."""


class TurnSampling(Sampling):
    """Sampling of one turn, with a number that only the caller of this turn needs."""

    top_logprobs: int = 0
    """Number of the likeliest tokens to report at each position."""


def top_logprobs(sampling: Sampling) -> int:
    return sampling.top_logprobs if isinstance(sampling, TurnSampling) else 0


@dataclass(frozen=True)
class Sampled:
    """A sampled answer. The three lists have the same length and include the token that ended the turn, if one did."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Natural logarithms, from the distribution that `Sampling.logprobs` names."""
    weights_versions: list[str] = field(default_factory=list)
    finish_reason: str = "abort"
    """`stop`, `length`, or `abort` for an answer that was cut off."""
    likeliest: list[Likeliest] = field(default_factory=list)
    """The likeliest tokens at each position; empty if none were requested (`TurnSampling.top_logprobs`)."""

    def followed_by(self, rest: Sampled) -> Sampled:
        """Return this answer with the continuation that another endpoint sampled."""
        return Sampled(
            self.token_ids + rest.token_ids,
            self.logprobs + rest.logprobs,
            self.weights_versions + rest.weights_versions,
            rest.finish_reason,
            self.likeliest + rest.likeliest,
        )

    def ended(self, stop_ids: Sequence[int], max_tokens: int) -> Sampled | None:
        """Return the answer with a finish reason if its tokens show that it is complete; else None."""
        if self.token_ids and self.token_ids[-1] in stop_ids:
            return replace(self, finish_reason="stop")
        if len(self.token_ids) >= max_tokens:
            return replace(self, finish_reason="length")
        return None


class StreamLost(EndpointLost):
    """Raised if the endpoint failed before the end of the answer. `partial`: tokens received so far, which stay valid."""

    ending = "StreamLost"

    def __init__(self, message: str, partial: Sampled) -> None:
        super().__init__(message)
        self.partial = partial
