"""Checkpoints in the layouts of trainers: the complete ones are found, and each other one has its reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollyard.cli.checkpoints import CheckpointFolder, TrainerCheckpoint, problem_of
from rollyard.cli.weights_follow import Steps, choose
from rollyard.core.errors import Invalid
from rollyard.kinds.base import evolve
from tests.support import make

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def saved(path: Path, *, shards: bool = False, config: bool = True) -> Path:
    """Write a checkpoint as `save_pretrained` does."""
    path.mkdir(parents=True)
    if config:
        (path / "config.json").write_text('{"architectures": ["A"]}')
    if not shards:
        save_file({"a": np.ones(40, np.float32)}, path / "model.safetensors")
        return path
    for name, tensor in zip(SHARDS, "ab", strict=True):
        save_file({tensor: np.ones(40, np.float32)}, path / name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}))
    return path


def looked(folder: Path, after: int = -1, **options: str | bool) -> dict[int, TrainerCheckpoint]:
    """Look twice, with time enough between the looks."""
    seen = CheckpointFolder(folder, clock := Clock(), settle=1.0, **options)  # type: ignore[arg-type]
    assert all(checkpoint.problem is None for checkpoint in seen.look(after))
    clock.now = 1.5
    return {checkpoint.step: checkpoint for checkpoint in seen.look(after)}


@pytest.mark.parametrize(
    ("step_folder", "place", "shards"),
    [
        ("global_step_7", "actor/huggingface", True),  # verl, FSDP
        ("global_step_7", "actor/model/huggingface", True),  # verl, Megatron
        ("global_step_7", "policy", False),  # SkyRL
        ("rollout_7", "", True),  # slime, --save-hf DIR/rollout_{rollout_id}
        ("7", "", True),  # slime, --save-hf DIR/{rollout_id}
        ("weight_v000007", "", True),  # slime, weights from disk
        ("step_7", "policy/weights/model/consolidated", True),  # NeMo RL
        ("checkpoint-7", "", False),  # transformers
        ("iter_0000007", "", False),  # Megatron's names
    ],
)
def test_the_folders_of_trainers_are_found(tmp_path: Path, step_folder: str, place: str, shards: bool) -> None:
    folder = saved(tmp_path / step_folder / place, shards=shards)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    for name in ("tmp_step_8", "old_step_8", ".tmp-hf-export-8", "step_8.tmp", "logs", "last-checkpoint"):
        saved(tmp_path / name)
    found = looked(tmp_path)
    assert found == {7: TrainerCheckpoint(7, folder, "", 1.5)}
    assert looked(tmp_path, after=7) == {}


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole", shards=True)
    raw = (whole / SHARDS[1]).read_bytes()

    def problem(name: str, content: bytes | None, *, of: Path = whole) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        copy = Path(shutil.copytree(of, tmp_path / "copy"))
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content)
        return problem_of(copy)

    assert problem_of(whole) == ""
    assert problem(SHARDS[1], raw) == ""
    for broken in (raw[:-1], raw + b"x", raw[:20], b"", b"\0" * 500, b"x" * 500):
        assert problem(SHARDS[1], broken).startswith(f"{SHARDS[1]} is cut short or damaged: ") or (
            f"{SHARDS[1]} is not a safetensors file" in problem(SHARDS[1], broken)
        )
    assert f"{SHARDS[0]} is missing" in problem(SHARDS[0], None)
    assert "is not an index" in problem("model.safetensors.index.json", b'{"weight_')
    assert "model.safetensors is missing" in problem("model.safetensors.index.json", None)
    assert "config.json is not valid JSON" in problem("config.json", b'{"archit')
    assert "config.json is missing" in problem("config.json", None)
    assert "must contain a JSON object" in problem("config.json", b"[]")
    assert problem_of(tmp_path) == "there are no weights in Hugging Face layout in it yet"
    assert "model.safetensors is missing" in problem("model.safetensors", None, of=saved(tmp_path / "single"))


def test_a_folder_that_still_changes_is_not_judged_and_a_marker_is_waited_for(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, clock := Clock(), settle=1.0, marker="STABLE")
    path = saved(tmp_path / "step_3")

    def look() -> str | None:
        [found] = folder.look(-1)
        return found.problem

    assert look() is None
    clock.now = 0.9
    (path / "model.safetensors").touch()
    assert look() is None
    clock.now = 1.8
    assert look() is None, "it has changed at 0.9"
    clock.now = 2.0
    assert look() == "there is no STABLE"
    (path / "STABLE").touch()
    assert look() is None
    clock.now = 3.1
    assert look() == ""
    shutil.rmtree(path)
    assert folder.look(-1) == []
    shutil.rmtree(tmp_path)
    with pytest.raises(Invalid, match="No such file"):
        folder.look(-1)


def test_an_adapter_needs_its_own_files_and_a_missing_config_may_be_the_pools(tmp_path: Path) -> None:
    saved(tmp_path / "step_1", config=False)
    adapter = saved(tmp_path / "step_2", config=False)
    (adapter / "adapter_config.json").write_text("{}")
    assert "config.json is missing" in str(looked(tmp_path)[1].problem)
    assert looked(tmp_path, own_config=True)[1].problem == ""
    assert looked(tmp_path)[2].problem == "adapter_model.safetensors is missing"
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    assert looked(tmp_path)[2] == TrainerCheckpoint(2, adapter, "", 1.5, is_adapter=True)


def test_steps_become_versions_and_back_and_only_those_of_the_prefix_count() -> None:
    steps, status = Steps("run2-step"), make.weights("step90", "run2-step3", "run2-step12", current="run2-step12")
    assert steps.version(12) == "run2-step12"
    assert [steps.step(version) for version in ("run2-step12", "step12", "run2-step", "run2-stepx")] == [
        12,
        *[None] * 3,
    ]
    assert steps.last(status) == 12
    assert Steps("step").last(status) == 90
    assert Steps("other").last(status) == -1
    current = evolve(make.weights("123456789012", current="123456789012").history[0], origin="Spec")
    assert Steps("").last(evolve(status, current=current, history=[current])) == -1, "a checksum of digits"


def test_the_newest_complete_checkpoint_is_chosen_or_the_oldest_with_each(tmp_path: Path) -> None:
    problems = {4: "", 5: "", 6: "cut", 7: "", 8: None}
    found = [TrainerCheckpoint(step, tmp_path / str(step), problem, 0.0) for step, problem in problems.items()]

    def chosen(tried: set[int], *, each: bool = False) -> int | None:
        checkpoint = choose(found, tried, each=each)
        return checkpoint.step if checkpoint is not None else None

    assert chosen(set()) == 7
    assert chosen({7}) == 5, "the engines refused the newest one"
    assert chosen(set(), each=True) == 4
    assert chosen({4, 5, 7}) is None
