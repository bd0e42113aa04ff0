"""Checkpoints in a trainer's folder: which folders are checkpoints, and which of these are complete.

A checkpoint is a folder in Hugging Face layout, directly in a folder whose name ends with the step, or in one of the
places in `PLACES` below it. It is complete when

- its `config.json` is a JSON object (or `adapter_config.json`, for a LoRA adapter),
- every safetensors file that the index names is there (without an index: `model.safetensors`), and each file is exactly
  as long as its header says,
- and no file has changed for `settle` seconds: some programs give a file its whole length before they write its content.

The folders are polled. Shared file systems report no changes that other machines make.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rollyard.core.errors import Invalid
from rollyard.model_folder.checkpoint_info import read_checkpoint_info
from rollyard.model_folder.safetensors_header import shards

STEP_FOLDER = re.compile(r"(?:(?:global_step|step|iter|iteration|checkpoint|ckpt|rollout|weight_v)[_-]?)?([0-9]{1,15})")
"""Names of step folders. Unfinished folders have other names (`tmp_step_8`, `.tmp-hf-export-…`, `step_8.tmp`)."""
PLACES = (
    "",
    "actor/huggingface",  # verl with FSDP
    "actor/model/huggingface",  # verl with Megatron
    "policy",  # SkyRL
    "policy/weights/model/consolidated",  # NeMo RL
)
ADAPTER = "adapter_config.json"
MARKS = ("config.json", ADAPTER, "model.safetensors", "model.safetensors.index.json")
"""Files that only a folder in Hugging Face layout has."""

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class TrainerCheckpoint:
    step: int
    path: Path
    """Folder of the weights; the step folder while there are no weights in it."""
    problem: str | None
    """Why the checkpoint is not complete; empty if it is complete. None: it has just changed, so it is not judged yet."""
    quiet: float
    """Seconds since the last seen change."""
    is_adapter: bool = False


@dataclass
class _Seen:
    signature: Signature
    since: float
    problem: str | None = None


class CheckpointFolder:
    """The checkpoints in one folder, and what was seen of them before."""

    def __init__(
        self, folder: Path, clock: Callable[[], float], *, settle: float, marker: str = "", own_config: bool = False
    ) -> None:
        """`marker`: name of a file that a complete checkpoint has, in the step folder or beside the weights.
        `own_config`: True if a checkpoint without `config.json` gets the pool's own.
        """
        self._folder, self._clock, self._settle = folder.absolute(), clock, settle
        self._marker, self._own_config = marker, own_config
        self._seen = dict[Path, _Seen]()

    def steps(self) -> dict[int, Path]:
        """Return the step folders by step. Raises Invalid if the folder cannot be read."""
        try:
            with os.scandir(self._folder) as entries:
                folders = [Path(entry.path) for entry in entries if entry.is_dir()]
        except OSError as error:
            raise Invalid(f"{self._folder} cannot be read: {error.strerror}") from None
        return {int(found[1]): path for path in sorted(folders) if (found := STEP_FOLDER.fullmatch(path.name))}

    def look(self, after: int) -> list[TrainerCheckpoint]:
        """Return the checkpoints with a step above `after`, in the order of their steps. Call this in a thread."""
        found = [self._checkpoint(step, path) for step, path in sorted(self.steps().items()) if step > after]
        self._seen = {checkpoint.path: self._seen[checkpoint.path] for checkpoint in found}
        return found

    def _checkpoint(self, step: int, folder: Path) -> TrainerCheckpoint:
        path = next((p for p in _places(folder) if any((p / mark).exists() for mark in MARKS)), folder)
        signature, now = _signature(path), self._clock()
        seen = self._seen.get(path)
        if seen is None or seen.signature != signature:
            seen = self._seen[path] = _Seen(signature, now)
        quiet = now - seen.since
        is_adapter = (path / ADAPTER).exists()
        if quiet < self._settle:
            return TrainerCheckpoint(step, path, None, quiet, is_adapter)
        if seen.problem != "":  # judge a problem again: the marker may appear outside of `path`
            seen.problem = self._problem(folder, path, is_adapter)
        return TrainerCheckpoint(step, path, seen.problem, quiet, is_adapter)

    def _problem(self, folder: Path, path: Path, is_adapter: bool) -> str:
        if self._marker and not any((place / self._marker).exists() for place in (folder, path)):
            return f"there is no {self._marker}"
        return problem_of(path, is_adapter=is_adapter, own_config=self._own_config)


def problem_of(path: Path, *, is_adapter: bool = False, own_config: bool = False) -> str:
    """Return why a folder is not a complete checkpoint in Hugging Face layout; empty if it is complete."""
    try:
        if is_adapter:
            _read_object(path / ADAPTER)
            files = [path / "adapter_model.safetensors"]
        else:
            if not any((path / mark).exists() for mark in MARKS):
                return "there are no weights in Hugging Face layout in it yet"
            if not own_config or (path / "config.json").exists():
                read_checkpoint_info(path)
            files = shards(path)
        for file in files:
            with safe_open(file, framework="numpy"):  # reads the header, and compares the length of the file
                pass
    except SafetensorError as error:
        return f"{file.name} is cut short or damaged: {error}"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename or error)).name} is missing"
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    except Invalid as error:
        return str(error).removeprefix("WeightsUnavailable: ")
    return ""


def _places(folder: Path) -> Iterator[Path]:
    return (folder / place for place in PLACES)


def _signature(path: Path) -> Signature:
    """Name, size and time of change of each file; empty if the folder is gone."""
    try:
        with os.scandir(path) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except OSError:  # it was deleted or renamed meanwhile
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files))


def _read_object(file: Path) -> None:
    if not isinstance(json.loads(file.read_text()), dict):
        raise ValueError(f"{file.name} must contain a JSON object")
