"""From a pool's spec to the command line of its engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.engines.command import EngineCommand, engine_command
from rollyard.errors import Invalid
from rollyard.kinds.pools import InferencePoolSpec

UDS = Path("/scratch/ry-1/engine.sock")


def command(engine: dict[str, Any], **model: Any) -> EngineCommand:
    replicas = {} if "external" in engine else {"replicas": 1}
    spec = {"model": {"path": "/models/m", "servedName": "policy", **model}, "engine": engine, **replicas}
    return engine_command(InferencePoolSpec.model_validate(spec), UDS)


def test_vllm_gets_every_field_of_the_spec_and_the_users_arguments_last() -> None:
    vllm = {
        "tensorParallelSize": 2,
        "pipelineParallelSize": 4,
        "maxModelLen": 8192,
        "python": "/opt/vllm/bin/python",
        "extraArgs": ["--enforce-eager", "--tokenizer-mode", "slow"],
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "0"},
    }
    made = command({"vllm": vllm}, tokenizer="/models/tok")
    assert " ".join(made.argv) == (
        "/opt/vllm/bin/python -m vllm.entrypoints.openai.api_server --model /models/m --served-model-name policy "
        "--uds /scratch/ry-1/engine.sock --tensor-parallel-size 2 --pipeline-parallel-size 4 --generation-config vllm "
        "--enable-prompt-tokens-details --tokenizer /models/tok --max-model-len 8192 "
        "--enforce-eager --tokenizer-mode slow"
    )
    assert made.env == {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}


def test_what_vllm_knows_best_is_left_to_it() -> None:
    argv = command({"vllm": {}}).argv
    assert argv[0] == "python3"
    assert not {"--max-model-len", "--tokenizer", "--host", "--port", "--api-key"} & set(argv)


def test_the_embedded_engine_runs_in_our_own_python() -> None:
    made = command({"embedded": {"maxModelLen": 512, "maxSequences": 8}})
    assert made.argv == [
        *(sys.executable, "-m", "rollyard.engines.embedded", "--model", "/models/m", "--served-name", "policy"),
        *("--uds", str(UDS), "--max-sequences", "8", "--max-model-len", "512"),
    ]
    assert "--max-model-len" not in command({"embedded": {}}).argv


def test_an_external_engine_is_not_for_us_to_start() -> None:
    with pytest.raises(Invalid, match="started by others"):
        command({"external": {"endpoints": [{"url": "http://node7:8000/v1"}]}})
