"""The forward pass. The new tokens of several sequences go through each layer together, one row for each token.

All steps except attention work on all rows at once. Attention runs for each sequence over exactly that sequence's
positions. A product gives a row the same bits whatever the other rows are. So a sequence's logits do not depend on the
rest of the batch. The last bits of the logits may depend on whether a token was processed alone or together with
other tokens of its sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollyard.engine.embedded.kv_cache import KVCache
from rollyard.engine.embedded.matrix_product import product
from rollyard.engine.embedded.model_weights import LayerWeights, ModelWeights
from rollyard.engine.embedded.safetensors_files import Array
from rollyard.model_folder.model_config import Config


@dataclass(frozen=True)
class Span:
    """Consecutive new tokens of one sequence. They take positions start to end-1 of the sequence's slot in the
    cache."""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Model:
    """A Qwen3 decoder in float32."""

    def __init__(self, config: Config, weights: ModelWeights, capacity: int) -> None:
        """`capacity`: number of positions for which rotations are computed in advance."""
        self.config = config
        self.capacity = capacity
        self._weights = weights
        pairs = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
        angles = np.arange(capacity, dtype=np.float32)[:, None] / np.float32(config.rope_theta) ** pairs
        self._rotation = np.exp(1j * angles).astype(np.complex64)

    def forward(self, spans: Sequence[Span], cache: KVCache) -> Array:
        """Return logits [len(spans), vocab] after the last token of each span. The keys and values of all tokens are
        written to the cache."""
        rows = _Rows(spans)
        x = self._weights.embedding[rows.tokens]
        with np.errstate(over="ignore"):  # in `_mlp`, exp(-gate) may be inf; gate / inf is the correct 0
            for i, layer in enumerate(self._weights.layers):
                x = x + self._attention(
                    layer, _normed(x, self.config.rms_norm_eps), rows, cache.keys[i], cache.values[i]
                )
                x = x + _mlp(layer, _normed(x, self.config.rms_norm_eps))
        last = _normed(x[rows.last], self.config.rms_norm_eps)
        return product(last, self._weights.head)

    def _attention(self, layer: LayerWeights, x: Array, rows: _Rows, keys: Array, values: Array) -> Array:
        c = self.config
        qkv = product(x, layer.qkv).reshape(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        qk = _normed(qkv[:, : c.heads + c.kv_heads], c.rms_norm_eps) * layer.qk_norm
        qk = (qk.view(np.complex64) * self._rotation[rows.positions, None]).view(np.float32)
        k, v = qk[:, c.heads :], qkv[:, c.heads + c.kv_heads :]
        queries = qk[:, : c.heads].reshape(len(x), c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        mixed = np.empty_like(queries)
        if rows.singles:
            where, slots, positions = rows.single_rows, rows.single_slots, rows.single_positions
            keys[slots, :, :, positions] = k[where]
            values[slots, :, positions] = v[where]
            mixed[where] = _attend_one_each(queries[where], keys, values, rows.singles)
        for span, run, future in rows.runs:
            keys[span.slot, :, :, span.start : span.end] = k[run].transpose(1, 2, 0)
            values[span.slot, :, span.start : span.end] = v[run].swapaxes(0, 1)
            mixed[run] = _attend_run(queries[run], keys[span.slot], values[span.slot], span, future)
        return product(mixed.reshape(len(x), -1), layer.out)


class _Rows:
    """The tokens of all spans as rows, with their slots and positions."""

    def __init__(self, spans: Sequence[Span]) -> None:
        counts = [len(span.tokens) for span in spans]
        ends = np.cumsum(counts)
        self.last = ends - 1
        self.tokens = np.fromiter((token for span in spans for token in span.tokens), np.int64, ends[-1])
        self.positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        self.singles = [span for span in spans if len(span.tokens) == 1]
        self.single_rows = self.last[np.equal(counts, 1)]
        self.single_slots = np.array([span.slot for span in self.singles], np.int64)
        self.single_positions = self.positions[self.single_rows]
        self.runs = [
            (span, slice(end - count, end), _future(span))
            for span, end, count in zip(spans, ends.tolist(), counts, strict=True)
            if count > 1
        ]


def _attend_one_each(queries: Array, keys: Array, values: Array, spans: Sequence[Span]) -> Array:
    """Compute attention for queries [spans, kv heads, group, head_dim], one token for each span. The result has the
    same shape.

    The exponentials are computed for all spans at once, over scores padded with -inf. Sums go over a span's own
    positions only, because the order in which numpy adds depends on the number of summands.
    """
    scores = np.full((*queries.shape[:3], max(span.end for span in spans)), -np.inf, np.float32)
    for i, span in enumerate(spans):
        np.matmul(queries[i], keys[span.slot, :, :, : span.end], out=scores[i, :, :, : span.end])
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = np.empty_like(queries)
    sums = np.empty((*queries.shape[:3], 1), np.float32)
    for i, span in enumerate(spans):
        own = scores[i, :, :, : span.end]
        np.matmul(own, values[span.slot, :, : span.end], out=mixed[i])
        np.add.reduce(own, axis=-1, keepdims=True, out=sums[i])
    mixed /= sums
    return mixed


def _future(span: Span) -> Array:
    """Return a mask [new tokens, positions]: -inf if the position comes after the token, else 0."""
    behind = np.arange(span.end) > np.arange(span.start, span.end)[:, None]
    return np.where(behind, np.float32(-np.inf), np.float32(0))


def _attend_run(queries: Array, keys: Array, values: Array, span: Span, future: Array) -> Array:
    """Compute attention for queries [n, kv heads, group, head_dim] of one span. Each query sees the positions up to its
    own."""
    n, kv_heads, group, head_dim = queries.shape
    stacked = queries.transpose(1, 2, 0, 3).reshape(kv_heads, group * n, head_dim)
    scores = stacked @ keys[:, :, : span.end]
    scores.reshape(kv_heads, group, n, span.end)[...] += future
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Array = (scores @ values[:, : span.end]) / scores.sum(axis=-1, keepdims=True)
    return mixed.reshape(kv_heads, group, n, head_dim).transpose(2, 0, 1, 3)


def _mlp(layer: LayerWeights, x: Array) -> Array:
    gate, up = np.split(product(x, layer.gate_up), 2, axis=-1)
    return product(gate / (1 + np.exp(-gate)) * up, layer.down)


def _normed(x: Array, eps: float) -> Array:
    """Return the RMS norm over the last axis, before the multiplication by the norm's weight. This weight is part of
    the next matrix, or it is `qk_norm`."""
    square = np.vecdot(x, x) / np.float32(x.shape[-1])
    normed: Array = x / np.sqrt(square + np.float32(eps))[..., None]
    return normed
