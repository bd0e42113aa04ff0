"""Segments: unbroken sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import model_validator

from rollyard.kinds.base import WireModel


class Segment(WireModel):
    """One unbroken token sequence. The four arrays have the same length.

    `loss_mask[i]` is 1 if the policy sampled token i. For other tokens `logprobs[i]` and `weights_version[i]` are null.
    `logprobs` are natural logarithms of probabilities. With `sampling.logprobs: raw` the distribution is the model's
    own, with `processed` the distribution that the token was drawn from.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float | None]
    weights_version: list[str | None]
    prompt_length: int
    """Number of tokens before the first sampled token."""
    extras: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        n = len(self.token_ids)
        if not (n == len(self.loss_mask) == len(self.logprobs) == len(self.weights_version)):
            raise ValueError("token_ids, loss_mask, logprobs and weights_version must have the same length")
        for sampled, logprob, version in zip(self.loss_mask, self.logprobs, self.weights_version, strict=True):
            if bool(sampled) != (logprob is not None) or bool(sampled) != (version is not None):
                raise ValueError("logprobs and weights_version must be null exactly where loss_mask is 0")
        return self


def sampled_tokens(segments: Sequence[Segment]) -> int:
    """Number of sampled tokens. Trainers learn from these tokens only."""
    return sum(sum(segment.loss_mask) for segment in segments)


def most_sampled(segments: Sequence[Segment]) -> int | None:
    """Return the index of the segment with the most sampled tokens; None if no token was sampled.

    It is the best choice for a trainer that takes one sequence of a rollout, or wants each turn's prompt to begin with
    all tokens before it. The latter holds within one segment.
    """
    counts = [sum(segment.loss_mask) for segment in segments]
    return counts.index(max(counts)) if any(counts) else None
