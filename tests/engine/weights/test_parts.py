"""The parts of a weight update by themselves: adapters, folders, requests, what a probe says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.lora_adapter import read_adapter
from rollyard.engine.embedded.safetensors_files import read_tensor
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.proxy.epochs import with_fields
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.engine.weights.engine_control import ControlFailed
from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.verification import ProbeAnswer, WeightsProof, why_not_proven
from rollyard.kinds.base import evolve
from rollyard.model_folder.checkpoint_info import CheckpointInfo, read_checkpoint_info
from rollyard.model_folder.safetensors_header import entries
from rollyard.wire.engine import WeightsTarget
from tests.support.weights_yard import PROMPTS, certified, furthest, other_dir, recomputed, yard

__all__ = ["certified", "other_dir"]  # fixtures


def write_tensors(path: Path, tensors: dict[str, Any]) -> None:
    head, data = {}, b""
    for name, numbers in tensors.items():
        raw = numbers.astype(np.float32).tobytes()
        head[name] = {"dtype": "F32", "shape": list(numbers.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(head).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.fixture
def adapter(model_dir: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A LoRA adapter, and a model with the same merged into it."""
    found = dict(entries(model_dir / "model.safetensors"))
    tensors = {name: read_tensor(entry) for name, entry in found.items()}
    rng, parts = np.random.default_rng(5), {}
    for layer in (0, 2):
        for part in ("self_attn.q_proj", "mlp.down_proj"):
            name = f"model.layers.{layer}.{part}"
            rows, columns = tensors[f"{name}.weight"].shape
            a, b = rng.standard_normal((4, columns)) * 0.1, rng.standard_normal((rows, 4)) * 0.1
            parts |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"] + (b @ a) * 2.0
    folder, merged = tmp_path / "adapter", tmp_path / "merged"
    folder.mkdir()
    shutil.copytree(model_dir, merged)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_tensors(folder / "adapter_model.safetensors", parts)
    write_tensors(merged / "model.safetensors", tensors)
    return folder, merged


async def test_an_adapter_is_taken_up_let_go_and_survives_a_kill(
    model_dir: Path, tmp_path: Path, certified: Any, adapter: tuple[Path, Path]
) -> None:
    folder, merged = adapter
    spec = {"model": {"path": str(model_dir)}, "engine": {"embedded": {}}}
    order = WeightsTarget(version="lora-1", mode="Pause", adapter=str(folder))
    async with yard(spec, tmp_path, certified, order=order) as made:
        answer = await made.stream(PROMPTS[0], 20)
        assert set(answer.versions) == {"lora-1"}
        assert furthest(answer, recomputed(answer, merged, merged)) < 1e-3
        await made.order(WeightsTarget(version="v2", path=str(model_dir)))
        answer = await made.stream(PROMPTS[0], 20)
        assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3
        await made.order(evolve(order, version="lora-2"))
        answer = await made.stream(PROMPTS[0], 20)
        assert set(answer.versions) == {"lora-2"}
        assert furthest(answer, recomputed(answer, merged, merged)) < 1e-3


def test_an_adapter_that_cannot_be_merged_is_refused(adapter: tuple[Path, Path], model_dir: Path) -> None:
    folder, _ = adapter
    with pytest.raises(Invalid, match="contains no LoRA adapter"):
        read_adapter(model_dir)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(Invalid, match="use_dora must be false, not true"):
        read_adapter(folder)
    for change in ({"r": None}, {"lora_alpha": None}, {"r": 0}, {"r": "4"}):
        (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(Invalid, match="must contain `r`"):
            read_adapter(folder)


@pytest.mark.parametrize(
    ("body", "fields", "wanted"),
    [
        ({"model": "policy", "prompt": [1, 2]}, {"cache_salt": "v"}, {"cache_salt": "v"}),
        ({"model": "policy"}, {"model": "adapter"}, {"model": "adapter"}),
        ({"cache_salt": "mine"}, {"cache_salt": "v"}, {"cache_salt": "mine/v"}),
        ({}, {"cache_salt": "v"}, {"cache_salt": "v"}),
    ],
)
def test_a_request_gets_the_fields_of_its_weights(
    body: dict[str, Any], fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert json.loads(with_fields(json.dumps(body, indent=1).encode() + b"\n", fields)) == {**body, **wanted}


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"cache_salt"', b"7"])
def test_what_is_no_request_passes_as_it_is(body: bytes) -> None:
    assert with_fields(body, {"cache_salt": "v"}) == body


def test_folders_of_one_model_fit_and_others_say_what_differs(model_dir: Path, other_dir: Path) -> None:
    ours = read_checkpoint_info(model_dir)
    assert ours.incompatibility(read_checkpoint_info(other_dir)) == ""
    assert not ours.tied
    fewer = CheckpointInfo(ours.config, {n: s for n, s in ours.shapes.items() if "layers.3." not in n})
    assert ours.incompatibility(fewer).startswith("WrongShape: model.layers.3.")
    assert "is missing, but the pool's is [" in ours.incompatibility(fewer)
    headless = CheckpointInfo(ours.config, {n: s for n, s in ours.shapes.items() if n != "lm_head.weight"})
    assert headless.tied
    assert headless.incompatibility(CheckpointInfo({**ours.config, "tie_word_embeddings": True}, ours.shapes)) == ""


SAME = ProbeAnswer((5, 6, 7), (-1.0, -2.0, -0.5))


@pytest.mark.parametrize(
    ("proof", "again", "known", "noise", "words"),
    [
        (WeightsProof(SAME, 0.001), SAME, WeightsProof(SAME, 0.001), 0.001, ""),
        (WeightsProof(SAME, None), SAME, None, None, ""),
        (WeightsProof(SAME, 0.1), SAME, None, 0.05, ""),  # half precision: as far off as it was before
        (WeightsProof(SAME, 0.1), SAME, None, None, ""),
        (WeightsProof(SAME, 0.1), SAME, None, 0.001, "by up to 0.1 from those computed"),
        (WeightsProof(SAME, 0.9), SAME, None, None, "by up to 0.9 from those computed"),
        (
            WeightsProof(SAME, None),
            ProbeAnswer((5, 6, 7), (-1.0, -2.0, -3.5)),
            None,
            0.0,
            "differently the second time",
        ),
        (
            WeightsProof(SAME, None),
            SAME,
            WeightsProof(ProbeAnswer((4, 6, 7), SAME.logprobs), None),
            0.0,
            "differ by inf",
        ),
    ],
)
def test_what_speaks_against_an_answer(
    proof: WeightsProof, again: ProbeAnswer, known: WeightsProof | None, noise: float | None, words: str
) -> None:
    said = why_not_proven(proof, again, known, noise)
    assert words in said
    assert bool(said) == bool(words)


async def test_vllm_is_not_asked_to_reload_what_it_would_reload_wrongly(tmp_path: Path, start_engine: Any) -> None:
    now, new = WeightsSource("1", "a", Path("/a")), WeightsSource("2", "b", Path("/b"))
    async with Supervisor(None, start_engine().socket).session() as http:  # type: ignore[arg-type]
        control = VllmControl(http, [])
        tied, plain = CheckpointInfo({"tie_word_embeddings": True}, {}), CheckpointInfo({}, {"lm_head.weight": (1, 1)})
        assert "tied" in control.why_not_loadable(new, now, tied)
        await control.detect()  # an engine that has none of vLLM's routes
        assert not control.can_pause
        assert "cannot reload" in control.why_not_loadable(new, now, plain)
        assert "--enable-lora" in control.why_unsupported(WeightsSource("3", "c", Path("/a"), Path("/lora")))
        assert (
            VllmControl(http, ["--enable-lora"]).why_unsupported(WeightsSource("3", "c", Path("/a"), Path("/lora")))
            == ""
        )
        with pytest.raises(ControlFailed, match="/pause answered 404"):
            await control.pause("keep")
