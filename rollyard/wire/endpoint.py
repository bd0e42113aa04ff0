"""Address and properties of a model server."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from rollyard.kinds.engine_spec import Patience
from rollyard.wire.base import WireMessage

VERSION_HEADER = "X-Rollyard-Weights-Version"
"""Header of an answer that is not streamed. Its value is the weights version of the answer's last token."""
SEED_STRIDE = 0x9E3779B97F4A7C15
"""A request that continues after n sampled tokens has the seed `seed + n * SEED_STRIDE`. The stride is that of splitmix64
(Steele, Lea, Flood 2014): an odd number, so that no two seeds of a turn are the same, and far from the distances between
the seeds of different rollouts."""


class Endpoint(WireMessage):
    """Model server, as a node agent gets it from the server."""

    id: str
    url: str
    """Base URL. A path such as `/v1/completions` is appended to it."""
    token: str | None = None
    model: str
    weights_version: str
    tokenizer: str
    """Folder of the tokenizer and chat template."""
    tool_parser: str | None = None
    """Format of the model's tool calls, from the pool's spec; null: the format in the chat template."""
    ca: bool = True
    """True: the certificate of the model server is signed by Rollyard's own CA."""
    patience: Patience = Patience()
    """Time limits for this model server. If one of them is exceeded, another endpoint is used."""
    dialect: Literal["openai", "sglang"] = "openai"
    """API for requests with token ids. openai: `/v1/completions`, or vLLM's `/inference/v1/generate` on a server
    that is not Rollyard's own and has it. sglang: SGLang's own `/generate`."""
    logprobs: Literal["raw", "processed"] = "raw"
    """Distribution whose logprobs the model server returns, as in `Sampling.logprobs`."""
    context: int | None = None
    """Length of the context in tokens, as the engine reports it. Null if it is unknown, and for other servers than our
    own engines."""

    @field_validator("patience", mode="before")
    @classmethod
    def _ignore_unknown_times(cls, patience: Any) -> Any:
        """Drop unknown fields of `patience`, because a newer server may send them. In a spec an unknown field is an error."""
        return Patience.model_validate(patience, extra="ignore")
