"""A source of weights: a folder, possibly with a LoRA adapter, and the checksum of the files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.model_config import HEAD
from rollyard.kinds.base import evolve
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.engine import WeightsTarget

IDENTITY = ("architectures", "model_type", "quantization_config")
"""Fields of `config.json` that all weights of a pool must have in common. Other differences of architecture show in the
tensors' shapes."""
NOTES = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache")
"""Fields of `config.json` that do not change the computation, such as a folder's origin and number format."""
CHUNK = 8 << 20
PATTERNS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class WeightsSource:
    """Weights, as their files were when Rollyard read them."""

    version: str
    checksum: str
    """Checksum of the adapter if there is one, else of the folder."""
    folder: Path
    adapter: Path | None = None

    def matches(self, order: WeightsTarget) -> bool:
        """Return whether these weights have the target's version, adapter or folder, and checksum. A target without a
        checksum permits any checksum."""
        if order.version != self.version or (order.adapter is None) != (self.adapter is None):
            return False
        if Path(order.adapter or order.path or "") != (self.adapter or self.folder):
            return False
        return order.checksum is None or order.checksum == self.checksum

    def mismatch_text(self, found: str) -> str:
        """Describe that the files have the checksum `found`, and not the checksum of these weights."""
        return f"ChecksumMismatch: {self.adapter or self.folder} has checksum {found}, but {self.version} has {self.checksum}"


def read_source(model: ModelSpec, order: WeightsTarget | None, stopping: Callable[[], bool]) -> WeightsSource:
    """Read the weights of a target. Without a target, read the pool's own model; its checksum is also its version.

    Call this in a thread, because it reads the files completely. Raises Invalid like `folder_checksum`. Raises Invalid
    also if the target requires another checksum, or names no folder.
    """
    own = Path(model.path)
    if order is None:
        checksum = folder_checksum(own, stopping)
        return WeightsSource(checksum, checksum, own)
    given = order.adapter or order.path
    if given is None:
        raise Invalid("WeightsUnavailable: the update names neither a folder nor an adapter")
    checksum = folder_checksum(Path(given), stopping)
    if order.checksum is not None and checksum != order.checksum:
        raise Invalid(f"ChecksumMismatch: {given} has checksum {checksum}, but the update expects {order.checksum}")
    if order.adapter is not None:
        return WeightsSource(order.version, checksum, own, Path(given))
    return WeightsSource(order.version, checksum, Path(given))


def folder_checksum(folder: Path, stopping: Callable[[], bool] = lambda: False) -> str:
    """Return the first 12 hex digits of the sha256 over the weight files' names, sizes and content. The folder's path
    has no influence.

    Call this in a thread, because it reads the files completely. Raises Invalid if the folder is missing, cannot be
    read, or has no weights, and when `stopping` returns True.
    """
    if not folder.is_dir():
        raise Invalid(f"ModelMissing: {folder} is not a folder on this node")
    files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if not files:
        raise Invalid(f"ModelMissing: {folder} contains no weights ({', '.join(PATTERNS)})")
    digest = hashlib.sha256()
    try:
        for file in files:
            _add(digest, file, stopping)
    except OSError as error:
        raise Invalid(f"ModelMissing: {error.filename or folder} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:12]


def _add(digest: hashlib._Hash, file: Path, stopping: Callable[[], bool]) -> None:
    with file.open("rb") as stream:
        digest.update(f"{file.name}\0{os.fstat(stream.fileno()).st_size}\0".encode())
        while chunk := stream.read(CHUNK):
            if stopping():
                raise Invalid("Stopped: the weights were not read completely")
            digest.update(chunk)


def changed_on_disk(source: WeightsSource, stopping: Callable[[], bool]) -> str:
    """Describe the change if the source's files have changed since they were read; return an empty text if not. Call
    this in a thread, because it reads the files completely."""
    try:
        found = folder_checksum(source.adapter or source.folder, stopping)
    except Invalid as error:
        return str(error)
    return "" if found == source.checksum else source.mismatch_text(found)


def with_weights(spec: InferencePoolSpec, folder: str | None) -> InferencePoolSpec:
    """Return the pool's spec with the weights of another folder. The tokenizer stays the same, because a trainer may
    have written only weights to that folder."""
    model = spec.model
    if folder is None or folder == model.path:
        return spec
    changed = evolve(model, path=folder, tokenizer=model.tokenizer or model.path)
    return evolve(spec, model=changed)


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
                return (
                    f"WrongArchitecture: {name} is {other.config.get(name)}, but the pool's is {self.config.get(name)}"
                )
        if not self.shapes or not other.shapes:
            return ""
        ours, theirs = dict(self.shapes), dict(other.shapes)
        if self.tied and other.tied:  # some trainers also write the head of a tied model
            ours.pop(HEAD, None), theirs.pop(HEAD, None)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                return f"WrongShape: {name} is {_shape(theirs.get(name))}, but the pool's is {_shape(ours.get(name))}"
        return ""


def read_checkpoint_info(folder: Path) -> CheckpointInfo:
    """Read a folder's configuration and shapes. Raises Invalid if config.json cannot be read, or if a safetensors file
    is missing or damaged."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise Invalid(f"WeightsUnavailable: {folder}/config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise Invalid(f"WeightsUnavailable: {folder}/config.json must contain a JSON object")
    if not any(folder.glob("*.safetensors")):
        return CheckpointInfo(config, {})
    from rollyard.engine.embedded.safetensors_files import entries, shards

    try:
        return CheckpointInfo(config, {name: entry.shape for shard in shards(folder) for name, entry in entries(shard)})
    except (OSError, Invalid) as error:
        raise Invalid(f"WeightsUnavailable: {error}") from None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
