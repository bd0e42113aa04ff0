"""A model server as those reach it who sample from it."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.engine_spec import Patience
from rollyard.wire.base import WireMessage


class Endpoint(WireMessage):
    """A model server as a node agent reaches it."""

    id: str
    url: str
    """Base URL; `/v1/completions` hangs below it."""
    token: str | None = None
    model: str
    weights_version: str
    tokenizer: str
    """Folder of the tokenizer and chat template."""
    ca: bool = True
    """Whether its certificate comes from Rollyard's own CA."""
    patience: Patience = Patience()
    """How long to wait for it."""
    dialect: Literal["openai", "sglang"] = "openai"
    """Which of its routes takes and gives token ids: `/v1/completions`, or SGLang's own `/generate`."""
    logprobs: Literal["raw", "processed"] = "raw"
    """Which logprobs it gives."""
