"""Model servers with the addresses at which clients reach them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from rollyard.kinds.engine_spec import Patience
from rollyard.wire.base import WireMessage

VERSION_HEADER = "X-Rollyard-Weights-Version"
"""Header of an answer that is sent in one piece: the weights version of its last token."""
SEED_STRIDE = 0x9E3779B97F4A7C15
"""Stride of splitmix64 (Steele, Lea, Flood 2014). `seed + n * SEED_STRIDE` continues a request after n draws."""


class Endpoint(WireMessage):
    """Address and properties of a model server, for node agents."""

    id: str
    url: str
    """Base URL, to which routes such as `/v1/completions` are added."""
    token: str | None = None
    model: str
    weights_version: str
    tokenizer: str
    """Folder of the tokenizer and chat template."""
    ca: bool = True
    """True: its certificate comes from Rollyard's own CA."""
    patience: Patience = Patience()
    """Times to wait for this model server before another endpoint is used."""
    dialect: Literal["openai", "sglang"] = "openai"
    """Route that accepts and returns token ids: `/v1/completions`, or SGLang's own `/generate`."""
    logprobs: Literal["raw", "processed"] = "raw"
    """Kind of logprobs that the model server returns."""

    @field_validator("patience", mode="before")
    @classmethod
    def _ignore_unknown_times(cls, patience: Any) -> Any:
        """Drop unknown fields of `patience`: a newer server may send them. In specs they are errors."""
        return Patience.model_validate(patience, extra="ignore")
