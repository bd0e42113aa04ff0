"""Reference logprobs: computed from a model's files by the embedded engine's forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollyard.core.errors import Invalid
from rollyard.engine.weights.source import WeightsSource

if TYPE_CHECKING:
    from rollyard.engine.embedded.safetensors_files import Array

MAX_BYTES = 256 << 20
"""Size limit of the weights: larger ones would take memory and time from the engine on the same node."""


def reference_logprobs(source: WeightsSource, prompt: Sequence[int], sampled: Sequence[int]) -> list[float] | None:
    """Return one logprob for each sampled id, or None for a model that is too large or of an unknown architecture.

    It computes, so it blocks: call it in a thread.
    """
    if sum(file.stat().st_size for file in source.folder.glob("*.safetensors")) > MAX_BYTES:
        return None
    from rollyard.engine.embedded.kv_cache import KVCache
    from rollyard.engine.embedded.model import Model, Span
    from rollyard.engine.embedded.model_config import read_config
    from rollyard.engine.embedded.model_weights import load_weights

    try:
        config = read_config(source.folder)
        model = Model(config, load_weights(source.folder, config, source.adapter), len(prompt) + len(sampled))
    except (Invalid, OSError):
        return None
    cache = KVCache(config, 1, len(prompt) + len(sampled))
    slot, _ = cache.acquire(list(prompt))
    span, logprobs = Span(slot, 0, prompt), []
    for token in sampled:
        logprobs.append(_logprob(model.forward([span], cache)[0], token))
        span = Span(slot, span.end, [token])
    return logprobs


def _logprob(logits: Array, token: int) -> float:
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
