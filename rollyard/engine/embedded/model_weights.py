"""A model's tensors as float32 matrices for the forward pass. A function supplies the tensors: they come from the
safetensors files of a folder, or from a trainer.

Three changes make the computation cheaper, and leave its result mathematically the same. The weights of the RMS
norms, except the query and key norms, are multiplied into the matrices that follow the norms. Query and key columns are
permuted so that the two numbers of a rotary pair are neighbours. One complex product then rotates the pair. Queries and
keys are permuted alike, so their dot products stay the same. 1/sqrt(head_dim) is multiplied into the query norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.lora_adapter import Adapter, read_adapter
from rollyard.engine.embedded.safetensors_files import Array, read_tensor
from rollyard.model_folder.model_config import HEAD, Config
from rollyard.model_folder.safetensors_header import entries, shards

ReadTensor = Callable[[str], Array]
"""Function that returns the tensor of a given name."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; every matrix is [inputs, outputs], C-contiguous."""

    qkv: Array
    """[hidden, (heads + 2 kv_heads) head_dim]"""
    qk_norm: Array
    """[heads + kv_heads, head_dim]"""
    out: Array
    """[heads head_dim, hidden]"""
    gate_up: Array
    """[hidden, 2 intermediate]"""
    down: Array
    """[intermediate, hidden]"""


@dataclass(frozen=True)
class ModelWeights:
    embedding: Array
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    head: Array
    """[hidden, vocab]"""


def load_weights(folder: Path, config: Config, adapter: Path | None = None) -> ModelWeights:
    """Load the folder's weights. If `adapter` is the folder of a LoRA adapter, merge the adapter into them.

    Raises Invalid if a file or a tensor is missing, damaged or of another shape than `config` requires, or if the
    adapter cannot be merged. The message names the file or the tensor.
    """
    return build_weights(_FolderTensors(folder, config, read_adapter(adapter) if adapter else None).read_tensor, config)


def tensor_shapes(config: Config) -> Mapping[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors that a model with this configuration has."""
    d, hd, f = config.hidden_size, config.head_dim, config.intermediate_size
    h, kv = config.heads, config.kv_heads
    layer = {
        "self_attn.q_proj": (h * hd, d),
        "self_attn.k_proj": (kv * hd, d),
        "self_attn.v_proj": (kv * hd, d),
        "self_attn.o_proj": (d, h * hd),
        "self_attn.q_norm": (hd,),
        "self_attn.k_norm": (hd,),
        "mlp.gate_proj": (f, d),
        "mlp.up_proj": (f, d),
        "mlp.down_proj": (d, f),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    ends = {"model.embed_tokens.weight": (config.vocab_size, d), "model.norm.weight": (d,)}
    head = {} if config.tied else {HEAD: (config.vocab_size, d)}
    layers = {f"model.layers.{i}.{name}.weight": shape for i in range(config.layers) for name, shape in layer.items()}
    return {**ends, **head, **layers}


def build_weights(read_tensor: ReadTensor, config: Config) -> ModelWeights:
    """Build the weights from the tensors that `tensor_shapes` lists. Raises the errors of `read_tensor`."""
    embedding = read_tensor("model.embed_tokens.weight")
    head = embedding if config.tied else read_tensor(HEAD)
    norm = read_tensor("model.norm.weight")
    layers = tuple(_layer(read_tensor, f"model.layers.{i}", config) for i in range(config.layers))
    return ModelWeights(embedding, layers, _matrix(head * norm))


def _layer(read_tensor: ReadTensor, at: str, config: Config) -> LayerWeights:
    hd, h, kv = config.head_dim, config.heads, config.kv_heads
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    q = _pairs(read_tensor(f"{attention}.q_proj.weight"), hd)
    k = _pairs(read_tensor(f"{attention}.k_proj.weight"), hd)
    v = read_tensor(f"{attention}.v_proj.weight")
    q_norm = _pairs(read_tensor(f"{attention}.q_norm.weight"), hd) / np.sqrt(np.float32(hd))
    k_norm = _pairs(read_tensor(f"{attention}.k_norm.weight"), hd)
    gate, up = read_tensor(f"{mlp}.gate_proj.weight"), read_tensor(f"{mlp}.up_proj.weight")
    before_attention = read_tensor(f"{at}.input_layernorm.weight")
    before_mlp = read_tensor(f"{at}.post_attention_layernorm.weight")
    return LayerWeights(
        qkv=_matrix(np.concatenate([q, k, v]) * before_attention),
        qk_norm=np.concatenate([np.tile(q_norm, (h, 1)), np.tile(k_norm, (kv, 1))]),
        out=_matrix(read_tensor(f"{attention}.o_proj.weight")),
        gate_up=_matrix(np.concatenate([gate, up]) * before_mlp),
        down=_matrix(read_tensor(f"{mlp}.down_proj.weight")),
    )


def _matrix(weight: Array) -> Array:
    """Transpose [outputs, inputs], torch's layout, to [inputs, outputs]."""
    return np.ascontiguousarray(weight.T)


def _pairs(rows: Array, head_dim: int) -> Array:
    """Reorder the n rows of each head from 0, 1, 2, ... to 0, n/2, 1, n/2 + 1, ..."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


class _FolderTensors:
    """Reads the tensors of a folder by name, each when it is requested."""

    def __init__(self, folder: Path, config: Config, adapter: Adapter | None) -> None:
        self._folder = folder
        self._shapes = tensor_shapes(config)
        self._adapter = adapter
        self._found = {name: entry for path in shards(folder) for name, entry in entries(path)}
        if adapter and (alien := sorted(adapter.targets - self._found.keys())):
            raise Invalid(f"{adapter.folder} changes {alien[0]}, which {folder} does not have")

    def read_tensor(self, name: str) -> Array:
        entry, shape = self._found.get(name), self._shapes[name]
        if entry is None:
            raise Invalid(f"{self._folder} has no tensor {name}, which its config.json requires")
        if entry.shape != shape:
            raise Invalid(
                f"{self._folder}: {name} has shape {list(entry.shape)}, but its config.json requires {list(shape)}"
            )
        weight = read_tensor(entry)
        return weight if self._adapter is None else self._adapter.added_to(name, weight)
