"""Where weights come from: a folder, perhaps an adapter on top of it, and what is found there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rollyard.core.errors import Invalid
from rollyard.engine.weights.checksum import weights_version
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.engine import WeightsTarget

IDENTITY = ("architectures", "model_type", "quantization_config")
"""Fields of `config.json` that one engine process keeps for life; the shapes say the rest."""
NOTES = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache")
"""Fields that say where a folder comes from, and how its numbers lie in it."""
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class WeightsSource:
    """Weights that were there when they were read."""

    version: str
    checksum: str
    """Of the adapter where there is one, else of the folder."""
    folder: Path
    adapter: Path | None = None

    def matches(self, order: WeightsTarget) -> bool:
        """Whether these are the weights of this order, under its version and from its folder."""
        if order.version != self.version or (order.adapter is None) != (self.adapter is None):
            return False
        if Path(order.adapter or order.path or "") != (self.adapter or self.folder):
            return False
        return order.checksum is None or order.checksum == self.checksum

    def mismatch_text(self, found: str) -> str:
        """What to say where this is found in their place."""
        return f"ChecksumMismatch: {self.adapter or self.folder} has checksum {found}, but {self.version} has {self.checksum}"


def read_source(model: ModelSpec, order: WeightsTarget | None, stopping: Callable[[], bool]) -> WeightsSource:
    """What an order means, or the pool's own model without one, which has its checksum for a version.

    Reads the files whole: call it in a thread. Raises Invalid when they are missing or are not those that were ordered.
    """
    own = Path(model.path)
    if order is None:
        checksum = weights_version(own, stopping)
        return WeightsSource(checksum, checksum, own)
    given = order.adapter or order.path
    if given is None:
        raise Invalid("WeightsUnavailable: the update names neither a folder nor an adapter")
    checksum = weights_version(Path(given), stopping)
    if order.checksum is not None and checksum != order.checksum:
        raise Invalid(f"ChecksumMismatch: {given} has checksum {checksum}, but the update expects {order.checksum}")
    if order.adapter is not None:
        return WeightsSource(order.version, checksum, own, Path(given))
    return WeightsSource(order.version, checksum, Path(given))


def changed_on_disk(source: WeightsSource, stopping: Callable[[], bool]) -> str:
    """Why its files are not what they were; empty when they are. Reads them whole: call it in a thread."""
    try:
        found = weights_version(source.adapter or source.folder, stopping)
    except Invalid as error:
        return str(error)
    return "" if found == source.checksum else source.mismatch_text(found)


def with_weights(spec: InferencePoolSpec, folder: str | None) -> InferencePoolSpec:
    """The pool's spec with the weights of another folder, of which nothing else is taken: a trainer may write no more."""
    model = spec.model
    if folder is None or folder == model.path:
        return spec
    moved = model.model_copy(update={"path": folder, "tokenizer": model.tokenizer or model.path})
    return spec.model_copy(update={"model": moved})


@dataclass(frozen=True)
class CheckpointInfo:
    """What a model's folder says of itself without its numbers."""

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """Of every tensor; empty where the weights are not in safetensors files."""

    @cached_property
    def tied(self) -> bool:
        """Whether the output head is the embedding table."""
        return bool(self.config.get("tie_word_embeddings")) or (bool(self.shapes) and HEAD not in self.shapes)

    def same_computation(self, other: CheckpointInfo) -> bool:
        """Whether the same numbers would make the same model of either configuration."""
        mine, theirs = ({k: v for k, v in c.config.items() if k not in NOTES} for c in (self, other))
        return mine == theirs

    def incompatibility(self, other: CheckpointInfo) -> str:
        """Why the other one cannot take this one's place in a pool; empty when it can."""
        for name in IDENTITY:
            if self.config.get(name) != other.config.get(name):
                return (
                    f"WrongArchitecture: {name} is {other.config.get(name)}, but the pool's is {self.config.get(name)}"
                )
        if not self.shapes or not other.shapes:
            return ""
        ours, theirs = dict(self.shapes), dict(other.shapes)
        if self.tied and other.tied:  # some trainers write the table twice
            ours.pop(HEAD, None), theirs.pop(HEAD, None)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                return f"WrongShape: {name} is {_shape(theirs.get(name))}, but the pool's is {_shape(ours.get(name))}"
        return ""


def read_checkpoint_info(folder: Path) -> CheckpointInfo:
    """Raises Invalid when there is no config.json, or a safetensors file is damaged."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise Invalid(f"WeightsUnavailable: {folder}/config.json cannot be read: {error}") from None
    if not any(folder.glob("*.safetensors")):
        return CheckpointInfo(config, {})
    from rollyard.engine.embedded.safetensors_files import entries, shards

    try:
        return CheckpointInfo(config, {name: entry.shape for shard in shards(folder) for name, entry in entries(shard)})
    except (OSError, ValueError, KeyError) as error:
        raise Invalid(f"WeightsUnavailable: {folder}: {error}") from None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
