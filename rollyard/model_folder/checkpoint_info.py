"""Configuration of a model's folder, and the shapes of its tensors; the comparison of two such folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rollyard.core.errors import FileMissing, Invalid
from rollyard.model_folder.json_file import read_object, shown
from rollyard.model_folder.model_config import HEAD
from rollyard.model_folder.safetensors_header import entries, shards

IDENTITY = ("architectures", "model_type", "quantization_config")
"""Fields of `config.json` that all weights of a pool must have in common. Other differences of architecture show in the
tensors' shapes."""
NOTES = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache")
"""Fields of `config.json` that do not change the computation, such as a folder's origin and number format."""


@dataclass(frozen=True)
class CheckpointInfo:
    """The configuration and the tensors' shapes of a model's folder."""

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of every tensor; empty if the weights are not in safetensors files."""

    @cached_property
    def tied(self) -> bool:
        """True if the output head is the embedding table."""
        return bool(self.config.get("tie_word_embeddings")) or (bool(self.shapes) and HEAD not in self.shapes)

    def same_computation(self, other: CheckpointInfo) -> bool:
        """Return whether the same tensors give the same model under both configurations."""
        mine, theirs = ({k: v for k, v in c.config.items() if k not in NOTES} for c in (self, other))
        return mine == theirs

    def incompatibility(self, other: CheckpointInfo) -> str:
        """Return why the other checkpoint cannot replace this one in a pool; empty if it can."""
        for name in IDENTITY:
            if self.config.get(name) != other.config.get(name):
                theirs, ours = shown(other.config.get(name)), shown(self.config.get(name))
                return f"WrongArchitecture: {name} is {theirs}, but the pool's is {ours}"
        if not self.shapes or not other.shapes:
            return ""
        mine, others = dict(self.shapes), dict(other.shapes)
        if self.tied and other.tied:  # some trainers also write the head of a tied model
            mine.pop(HEAD, None), others.pop(HEAD, None)
        for name in sorted(mine.keys() | others.keys()):
            if mine.get(name) != others.get(name):
                return f"WrongShape: {name} is {_shape(others.get(name))}, but the pool's is {_shape(mine.get(name))}"
        return ""


def read_checkpoint_info(folder: Path) -> CheckpointInfo:
    """Read a folder's configuration and shapes. Raises FileMissing, and Invalid if a file cannot be read or is
    damaged."""
    try:
        config = read_object(folder / "config.json")
        if not any(folder.glob("*.safetensors")):
            return CheckpointInfo(config, {})
        return CheckpointInfo(config, {name: entry.shape for shard in shards(folder) for name, entry in entries(shard)})
    except FileMissing as error:
        raise FileMissing(f"WeightsUnavailable: {error}") from None
    except OSError as error:
        raise Invalid(f"WeightsUnavailable: {error.filename or folder} cannot be read: {error.strerror}") from None
    except Invalid as error:
        raise Invalid(f"WeightsUnavailable: {error}") from None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
