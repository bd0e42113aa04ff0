"""Reasons, visible in a model's folder, why the engine of a pool could never serve the model.

The server reads the folder where it can. A folder that only the engines' nodes have is not judged: the engine itself
says what it lacks.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rollyard.core.errors import Cause, FileMissing, Invalid
from rollyard.core.regular_file import open_regular
from rollyard.kinds.engine_spec import EngineSpec, ModelSpec, VllmEngine
from rollyard.kinds.weights import WeightsUpdate
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.model_folder.json_file import read_object
from rollyard.model_folder.model_config import read_config
from rollyard.model_folder.safetensors_header import STORED_TYPES, TYPES_TEXT, entries, shards

SYSTEM_FOLDERS = ("/dev", "/etc", "/proc", "/sys")
"""Folders that belong to the system on every node."""
TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken",
    "spiece.model",
)  # fmt: skip
OTHER_CONFIG = ("--hf-overrides", "--config-format", "--load-format", "--hf-config-path")
"""Options with which vLLM needs no `architectures` in `config.json`."""


def model_causes(model: ModelSpec, engine: EngineSpec) -> list[Cause]:
    """Return why the engine could never serve the model; empty if the folder is good or this machine cannot read it."""
    if engine.external is not None:
        return []
    folder, tokenizer = Path(model.path), Path(model.tokenizer or model.path)
    if why := _no_folder(folder):
        return [Cause("spec.model.path", why)]
    causes = [Cause("spec.model.path", why) for why in _model_problems(folder, engine)]
    if (tokenizer / "config.json").is_file() or (model.tokenizer is not None and tokenizer.is_dir()):
        names = ("tokenizer.json",) if engine.embedded is not None else TOKENIZERS
        if not any(any(tokenizer.glob(name)) for name in names):
            field = "spec.model.path" if model.tokenizer is None else "spec.model.tokenizer"
            causes.append(Cause(field, f"{tokenizer} has no tokenizer; it needs {' or '.join(names)}"))
    return causes


def update_causes(model: ModelSpec, engine: EngineSpec, update: WeightsUpdate) -> list[Cause]:
    """Return why the engine could never load the weights of an update; empty if they are good or this machine cannot
    read them."""
    if engine.external is not None:
        return []
    field, given = ("adapter", update.adapter) if update.adapter is not None else ("path", update.path)
    folder = Path(given or "")
    if why := _no_folder(folder):
        return [Cause(field, why)]
    if update.adapter is not None:
        return []
    causes = [Cause(field, why) for why in _model_problems(folder, engine)]
    if not causes and (why := _other_model(Path(model.path), folder)):
        causes.append(Cause(field, why))
    return causes


def _no_folder(path: Path) -> str:
    path = Path(os.path.normpath(path))
    if any(path.is_relative_to(system) for system in SYSTEM_FOLDERS) and not path.is_relative_to("/dev/shm"):
        return f"{path} belongs to the system; name the folder of a model"
    if path.exists() and not path.is_dir():
        return f"{path} is a file; name the folder of a model in Hugging Face layout"
    return ""


def _model_problems(folder: Path, engine: EngineSpec) -> Iterator[str]:
    """Yield the first problem of the folder, if there is one."""
    try:
        with contextlib.suppress(IsADirectoryError), open_regular(folder / "config.json"):
            pass
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: it is not a regular file
            return  # the nodes may have it or be allowed to read it; the engine says what it lacks
    try:
        config = read_object(folder / "config.json")
        if engine.embedded is not None:
            read_config(folder)
            for name, entry in (found for shard in shards(folder) for found in entries(shard)):
                if entry.dtype not in STORED_TYPES:
                    yield f"use engine.vllm: the embedded engine reads {TYPES_TEXT}, and {name} has {entry.dtype}"
                    return
    except (FileMissing, OSError):
        return
    except Invalid as error:
        yield str(error)
        return
    if engine.vllm is not None and not _has_other_config(engine.vllm) and not config.get("architectures"):
        yield f"{folder}/config.json names no `architectures`, by which vLLM finds the model's code"


def _has_other_config(vllm: VllmEngine) -> bool:
    return any(argument.split("=")[0] in OTHER_CONFIG for argument in vllm.extra_args)


def _other_model(own: Path, new: Path) -> str:
    """Return why a checkpoint is of another architecture than the pool's model; empty if it is not, or not known."""
    try:
        mine, theirs = (CheckpointInfo(read_object(folder / "config.json"), {}) for folder in (own, new))
    except Invalid:
        return ""
    return mine.incompatibility(theirs)
