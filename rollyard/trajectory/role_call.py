"""Calls that a task handler made to models by role, such as a judge. Nobody trains on them."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import WireModel
from rollyard.kinds.rollout import Stage

MAX_TEXT_CHARS = 4000
MAX_TOKENS = 1 << 20
"""Greatest number of token ids that one outcome keeps of its role calls together. Later calls keep their counts alone."""


class RoleCall(WireModel):
    """One call of a role's model."""

    role: str
    stage: Stage
    purpose: Literal["question", "control"] = "question"
    """control: the control question, which shows whether the model is of use at all."""
    ending: Literal["answered", "malformed", "failed"]
    """malformed: the answer did not have the form that the handler asked for. failed: there was no whole answer."""
    digest: str
    """sha256 of the messages as canonical JSON. Equal questions have equal digests."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_ids: list[int] = []
    """Ids of the prompt; empty beyond MAX_TOKENS."""
    token_ids: list[int] = []
    """Ids of the answer; empty beyond MAX_TOKENS."""
    logprobs: list[float] = []
    """Logprob of each id of `token_ids`, from the distribution that `logprobsMode` of the InferencePool names."""
    text: str = ""
    """Text of the answer, cut after MAX_TEXT_CHARS; without an answer the reason."""
    weights_versions: list[str] = []
    """Weights versions that sampled the answer."""
    endpoint: str | None = None
    seconds: float = 0.0
