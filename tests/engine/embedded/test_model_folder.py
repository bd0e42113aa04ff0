"""Model folders that cannot be served are refused with the field, tensor or file that is in the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.kv_cache import KVCache
from rollyard.engine.embedded.model_weights import load_weights
from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.verification import reference_logprobs
from rollyard.model_folder.checkpoint_info import read_checkpoint_info
from rollyard.model_folder.model_config import read_config


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    shutil.copytree(model_dir, tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("model_type", "llama", 'must be "qwen3"'),
        ("hidden_act", "gelu", 'must be "silu"'),
        ("attention_bias", True, "must be false"),
        ("use_sliding_window", True, "must be false"),
        ("quantization_config", {"quant_method": "fp8"}, "must be null"),
        ("layer_types", ["sliding_attention"], "full_attention"),
        ("layer_types", 3, "full_attention"),
        ("rope_parameters", "yarn", "must be an object"),
        ("rope_parameters.rope_theta", {"rope_theta": "large"}, 'must be a positive number, not "large"'),
        ("rms_norm_eps", "small", 'must be a positive number, not "small"'),
        ("rms_norm_eps", None, "must be a positive number, not null"),
        ("eos_token_id", "</s>", "must be an integer or a list of integers"),
        ("rope_parameters.rope_type", {"rope_type": "yarn", "factor": 4.0}, 'must be "default"'),
        ("num_key_value_heads", 3, "must divide num_attention_heads"),
        ("num_hidden_layers", "many", "positive integer"),
        ("head_dim", 31, "must be even"),
    ],
)
def test_a_config_that_cannot_be_served_names_the_field(folder: Path, field: str, value: Any, says: str) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    change(folder, **{field.split(".")[0]: value})
    with pytest.raises(Invalid, match=says) as refused:
        read_config(folder)
    assert [cause.field for cause in refused.value.causes] == [field]


def test_rope_scaling_in_the_older_spelling_is_refused(folder: Path) -> None:
    change(folder, rope_parameters=None, rope_theta=1e6, rope_scaling={"type": "linear", "factor": 2.0})
    with pytest.raises(Invalid, match=r"rope_scaling\.rope_type"):
        read_config(folder)


def test_eos_ids_of_generation_config_win(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert read_config(folder).eos_ids == (7, 2)


def test_missing_and_misshapen_tensors_are_named(folder: Path) -> None:
    change(folder, num_hidden_layers=99)
    with pytest.raises(Invalid, match=r"no tensor model\.layers\.\d+\."):
        load_weights(folder, read_config(folder))
    change(folder, num_hidden_layers=1, intermediate_size=64)
    with pytest.raises(Invalid, match=r"mlp\.gate_proj\.weight has shape \[\d+, \d+\]"):
        load_weights(folder, read_config(folder))


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "header",
    [
        [],
        {NORM: 3},
        {NORM: {"dtype": "F32"}},
        {NORM: {"dtype": "F32", "shape": ["64"], "data_offsets": [0, 256]}},
        {NORM: {"dtype": "F32", "shape": [64], "data_offsets": []}},
        {NORM: {"dtype": "F32", "shape": [64], "data_offsets": [-8, 256]}},
    ],
)
def test_a_file_with_a_damaged_header_is_refused(folder: Path, header: Any) -> None:
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(256))
    with pytest.raises(Invalid, match=r"model\.safetensors is not a safetensors file"):
        load_weights(folder, read_config(folder))
    assert reference_logprobs(WeightsSource("v", "c", folder), [20], [21]) is None


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index_is_refused(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(Invalid, match=r"index\.json is not an index of safetensors files"):
        load_weights(folder, read_config(folder))
    with pytest.raises(Invalid, match="WeightsUnavailable: "):
        read_checkpoint_info(folder)
    assert reference_logprobs(WeightsSource("v", "c", folder), [20], [21]) is None


@pytest.mark.parametrize("keep", [5, 100_000])
def test_a_file_that_is_cut_short_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Invalid, match="copy it again"):
        load_weights(folder, read_config(folder))


def test_a_cache_larger_than_the_memory_is_refused(folder: Path) -> None:
    with pytest.raises(Invalid, match="lower --max-model-len or --max-sequences"):
        KVCache(read_config(folder), 1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "/nowhere"], "config.json is missing"),
        (["--max-model-len", "1000000"], "--max-model-len must be between"),
        (["--max-sequences", "0"], "--max-sequences must be at least 1"),
    ],
)
def test_the_process_says_why_and_exits_2(folder: Path, tmp_path: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "rollyard.engine.embedded", "--model", str(folder), "--served-name", "policy"]
    done = subprocess.run(
        [*command, "--uds", str(tmp_path / "socket"), *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert not (tmp_path / "socket").exists()
