"""Reads a model's `Config` from a Hugging Face `config.json`. Refuses a model that the embedded engine cannot serve."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollyard.core.errors import Cause, Invalid
from rollyard.model_folder.json_file import read_object, shown

HEAD = "lm_head.weight"
"""Name of the output head's tensor. A model with tied word embeddings does not need this tensor."""
_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
"""Values that transformers assumes for Qwen3 if `config.json` lacks a field."""

_ONLY: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "quantization_config": None,
}
"""Fields and their required values. Only `model_type` must be present. A field whose required value is false may also
be null."""
MAX_LAYERS, MAX_SIZE = 10_000, 2**31
"""Greatest values of sizes. A list with a name for each tensor would fill the memory before a missing tensor is found."""


@dataclass(frozen=True)
class Config:
    """The shape of a Qwen3 model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tied: bool
    """True if the output head is the embedding table."""
    max_positions: int
    eos_ids: tuple[int, ...]
    """Ids of the tokens that end a sequence. The first one is used as the tokenizer's own end token."""

    @property
    def shape(self) -> Config:
        """This config with `eos_ids` and `max_positions` cleared. Only weights of an equal shape can replace the
        weights of a running engine."""
        return replace(self, eos_ids=(), max_positions=0)


def read_config(folder: Path) -> Config:
    """Read a model's config. Raises Invalid with one cause for each field whose value the engine cannot serve. Raises
    Invalid without a cause if `config.json` is missing, or if a file is not valid JSON."""
    raw = read_object(folder / "config.json")
    causes = [*_unsupported(raw), *_rope_causes(raw)]
    foreign = bool(causes)
    sizes = _sizes(raw, causes)
    epsilon = _positive("rms_norm_eps", raw.get("rms_norm_eps", _DEFAULTS["rms_norm_eps"]), causes)
    theta_field = "rope_parameters.rope_theta" if raw.get("rope_parameters") else "rope_theta"
    theta = _positive(theta_field, _rope(raw).get("rope_theta", 10_000.0), causes)
    eos_ids = _eos_ids(folder, raw, causes)
    if causes:
        # The advice comes first: tables and conditions cut a long sentence.
        advice = "use engine.vllm: " if foreign else ""
        why = f"{causes[0].field} {causes[0].message}"
        raise Invalid(f"{advice}the embedded engine serves only Qwen3: {why} ({folder}/config.json)", causes=causes)
    return Config(
        **sizes,
        rms_norm_eps=epsilon,
        rope_theta=theta,
        tied=bool(raw.get("tie_word_embeddings", _DEFAULTS["tie_word_embeddings"])),
        eos_ids=eos_ids,
    )


def _unsupported(raw: dict[str, Any]) -> list[Cause]:
    causes = []
    for field, only in _ONLY.items():
        value = raw.get(field, None if field == "model_type" else only)
        if value != only and not (only is False and value is None):
            causes.append(Cause(field, f"must be {shown(only)}, not {shown(value)}"))
    types = raw.get("layer_types") or []
    others = [kind for kind in (types if isinstance(types, list) else [types]) if kind != "full_attention"]
    if others:
        causes.append(Cause("layer_types", f'must contain "full_attention" only; it contains {shown(others[0])}'))
    return causes


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Read the rotary embedding in both spellings: `rope_parameters` (transformers 5), or `rope_theta` with
    `rope_scaling` (transformers 4)."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope = given if isinstance(given, dict) else {}
    return rope if raw.get("rope_parameters") else {"rope_theta": raw.get("rope_theta", 10_000.0), **rope}


def _rope_causes(raw: dict[str, Any]) -> list[Cause]:
    field = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    if not isinstance(raw.get(field) or {}, dict):
        return [Cause(field, f"must be an object, not {shown(raw[field])}")]
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    return [] if kind == "default" else [Cause(f"{field}.rope_type", f'must be "default", not {shown(kind)}')]


def _sizes(raw: dict[str, Any], causes: list[Cause]) -> dict[str, int]:
    names = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_positions": "max_position_embeddings",
    }
    sizes = {}
    for ours, field in names.items():
        value = raw.get(field, _DEFAULTS.get(field))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            causes.append(Cause(field, f"must be a positive integer, not {shown(value)}"))
            value = 1
        if value > (most := MAX_LAYERS if ours == "layers" else MAX_SIZE):
            causes.append(Cause(field, f"must be at most {most}, not {shown(value)}"))
            value = 1
        sizes[ours] = value
    if sizes["heads"] % sizes["kv_heads"]:
        message = f"must divide num_attention_heads ({sizes['heads']}), but is {sizes['kv_heads']}"
        causes.append(Cause("num_key_value_heads", message))
    if sizes["head_dim"] % 2:
        causes.append(Cause("head_dim", f"must be even, but is {sizes['head_dim']}"))
    return sizes


def _positive(field: str, value: Any, causes: list[Cause]) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
        return float(value)
    causes.append(Cause(field, f"must be a positive number, not {shown(value)}"))
    return 1.0


def _eos_ids(folder: Path, raw: dict[str, Any], causes: list[Cause]) -> tuple[int, ...]:
    """Read the ids that end a sequence. `generation_config.json` overrides `config.json`, as in transformers and
    vLLM."""
    path = folder / "generation_config.json"
    generation = read_object(path) if path.exists() else {}
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if any(type(id) is not int for id in ids):
        causes.append(Cause("eos_token_id", f"must be an integer or a list of integers, not {shown(eos)}"))
    return tuple(ids)
