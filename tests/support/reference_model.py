"""A Qwen3 decoder in its plainest form, by which tests compute again what an engine sampled.

The import of transformers' own takes ten seconds of CPU time. With the embedded engine it shares the reading of files
only; tests/engine/embedded/test_model.py compares both with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from rollyard.engine.embedded.safetensors_files import Array, read_tensor
from rollyard.model_folder.safetensors_header import entries, shards

Cache = Sequence[tuple[Array, Array]]
"""Keys and values [kv heads, positions, head_dim] of each layer."""


class ReferenceModel:
    """The model of a folder in Hugging Face layout, in float32."""

    def __init__(self, folder: Path) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        self._tensors = {name: read_tensor(entry) for path in shards(folder) for name, entry in entries(path)}

    def logits(self, ids: Sequence[int], cache: Cache | None = None) -> tuple[Array, Cache]:
        """Return logits [ids, vocab], and the cache after these tokens. They follow those of `cache`."""
        x, next_cache = self._tensors["model.embed_tokens.weight"][list(ids)], []
        for i in range(self._config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            mixed, kept = self._attention(f"{at}.self_attn", self._norm(f"{at}.input_layernorm", x), cache and cache[i])
            next_cache.append(kept)
            x = x + mixed
            x = x + self._mlp(f"{at}.mlp", self._norm(f"{at}.post_attention_layernorm", x))
        head = "model.embed_tokens" if self._config.get("tie_word_embeddings") else "lm_head"
        return self._product(head, self._norm("model.norm", x)), next_cache

    def logprobs(self, ids: Sequence[int], cache: Cache | None = None) -> tuple[Array, Cache]:
        """Return the logarithms of probabilities [ids, vocab], and the cache after these tokens."""
        logits, next_cache = self.logits(ids, cache)
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), next_cache

    def _attention(self, at: str, x: Array, past: tuple[Array, Array] | None) -> tuple[Array, tuple[Array, Array]]:
        q = self._norm(f"{at}.q_norm", self._heads(f"{at}.q_proj", x))
        k = self._norm(f"{at}.k_norm", self._heads(f"{at}.k_proj", x))
        v = self._heads(f"{at}.v_proj", x)
        positions = np.arange(len(x)) + (past[0].shape[1] if past else 0)
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        if past:
            k, v = np.concatenate([past[0], k], axis=1), np.concatenate([past[1], v], axis=1)
        group = len(q) // len(k)
        scores = q @ k.repeat(group, axis=0).swapaxes(1, 2) / np.sqrt(np.float32(q.shape[-1]))
        scores[:, np.arange(k.shape[1]) > positions[:, None]] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ v.repeat(group, axis=0)
        return self._product(f"{at}.o_proj", mixed.swapaxes(0, 1).reshape(len(x), -1)), (k, v)

    def _heads(self, name: str, x: Array) -> Array:
        """Return [heads, tokens, head_dim]."""
        return self._product(name, x).reshape(len(x), -1, self._config["head_dim"]).swapaxes(0, 1)

    def _rotated(self, x: Array, positions: Array) -> Array:
        width = x.shape[-1]
        theta = self._config["rope_parameters"]["rope_theta"]
        angles = positions[:, None] / theta ** (np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _mlp(self, at: str, x: Array) -> Array:
        gate = self._product(f"{at}.gate_proj", x)
        return self._product(f"{at}.down_proj", gate / (1 + np.exp(-gate)) * self._product(f"{at}.up_proj", x))

    def _norm(self, name: str, x: Array) -> Array:
        scale = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(self._config["rms_norm_eps"]))
        return x / scale * self._tensors[f"{name}.weight"]

    def _product(self, name: str, x: Array) -> Array:
        return x @ self._tensors[f"{name}.weight"].T


@lru_cache(maxsize=32)
def reference_model(folder: Path) -> ReferenceModel:
    """Return the folder's model, which stays in memory."""
    return ReferenceModel(folder)


def sampled_logprobs(folder: Path, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Return the logprob of each of `ids`, which follow the prompt."""
    table, _ = reference_model(folder).logprobs([*prompt, *ids])
    found: list[float] = table[np.arange(len(ids)) + len(prompt) - 1, list(ids)].tolist()
    return found
