"""Folders that the server refuses beforehand, and folders about which only the engine can say something."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollyard.kinds.engine_spec import EngineSpec, ModelSpec
from rollyard.kinds.weights import WeightsUpdate
from rollyard.model_folder.serving_check import model_causes, update_causes

EMBEDDED, VLLM = EngineSpec.model_validate({"embedded": {}}), EngineSpec.model_validate({"vllm": {}})


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def said(folder: Path, engine: EngineSpec) -> str:
    return "; ".join(f"{c.field}: {c.message}" for c in model_causes(ModelSpec(path=str(folder)), engine))


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2"])
def test_a_family_that_the_embedded_engine_does_not_serve_is_refused_with_the_answer_first(
    folder: Path, family: str
) -> None:
    assert said(folder, EMBEDDED) == said(folder, VLLM) == ""
    change(folder, model_type=family)
    assert said(folder, EMBEDDED).startswith(
        f'spec.model.path: use engine.vllm: the embedded engine serves only Qwen3: model_type must be "qwen3", not "{family}"'
    )
    assert said(folder, VLLM) == ""


def test_a_folder_that_the_server_cannot_read_is_not_judged(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for unknown in (tmp_path / "nowhere", tmp_path / "empty"):
        assert said(unknown, EMBEDDED) == said(unknown, VLLM) == ""
    (folder / "model.safetensors").unlink()
    assert said(folder, EMBEDDED) == "", "it may be copied at this moment"


@pytest.mark.parametrize("engine", [EMBEDDED, VLLM])
def test_what_can_never_be_a_model_is_refused(folder: Path, engine: EngineSpec) -> None:
    for system in ("/etc", "/dev", "/proc/self", "/sys", "/tmp/../etc/ssl"):
        assert "belongs to the system" in said(Path(system), engine)
    assert said(Path("/dev/shm/model"), engine) == ""
    assert "is a file; name the folder" in said(folder / "config.json", engine)
    (folder / "tokenizer.json").rename(folder / "kept")
    for other in folder.glob("tokenizer*"):
        other.unlink()
    assert "has no tokenizer" in said(folder, engine)
    (folder / "config.json").write_text("[" * 100_000)
    assert "nested too deeply" in said(folder, engine)


def test_numbers_of_another_type_are_refused_for_the_embedded_engine(folder: Path) -> None:
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])
    next(entry for name, entry in head.items() if name != "__metadata__")["dtype"] = "F8_E4M3"
    new = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])
    assert "use engine.vllm: the embedded engine reads BF16, F16 or F32, and" in said(folder, EMBEDDED)
    assert said(folder, VLLM) == ""


def test_vllm_needs_architectures_unless_an_option_names_them(folder: Path) -> None:
    change(folder, architectures=None)
    assert "names no `architectures`" in said(folder, VLLM)
    other = EngineSpec.model_validate({"vllm": {"extraArgs": ["--hf-overrides", "{}"]}})
    assert said(folder, other) == ""


def test_an_update_to_another_model_is_refused_where_its_folder_can_be_read(
    model_dir: Path, folder: Path, tmp_path: Path
) -> None:
    model = ModelSpec(path=str(model_dir))

    def why(path: str | Path, engine: EngineSpec = VLLM) -> list[str]:
        causes = update_causes(model, engine, WeightsUpdate(version="v1", path=str(path)))
        return [f"{c.field}: {c.message}" for c in causes]

    assert why(folder) == why(tmp_path / "typo") == []
    change(folder, model_type="llama")
    assert why(folder) == ['path: WrongArchitecture: model_type is "llama", but the pool\'s is "qwen3"']
    assert "use engine.vllm" in why(folder, EMBEDDED)[0]
    assert "belongs to the system" in why("/dev")[0]
    with pytest.raises(ValueError, match="without NUL"):
        WeightsUpdate(version="v1", path="/tmp/a\0b")
