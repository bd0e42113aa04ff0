"""From a pool's spec to the command line of its engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.engines.command import EngineCommand, engine_command
from rollyard.engines.gang import Place
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
        "/opt/vllm/bin/python -m vllm.entrypoints.openai.api_server --model /models/m "
        "--uds /scratch/ry-1/engine.sock --served-model-name policy "
        "--tensor-parallel-size 2 --pipeline-parallel-size 4 --generation-config vllm "
        "--enable-prompt-tokens-details --tokenizer /models/tok --max-model-len 8192 "
        "--enforce-eager --tokenizer-mode slow"
    )
    assert made.env == {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}


def test_which_logprobs_vllm_gives_is_the_pools_to_say() -> None:
    assert "--logprobs-mode" not in command({"vllm": {"logprobsMode": "raw"}}).argv
    argv = " ".join(command({"vllm": {"logprobsMode": "processed"}}).argv)
    assert "--logprobs-mode processed_logprobs" in argv
    with pytest.raises(ValidationError, match="write `logprobsMode"):
        command({"vllm": {"extraArgs": ["--logprobs-mode=raw_logits"]}})


def test_a_gang_has_its_server_on_the_first_node_and_workers_on_the_others() -> None:
    spec = InferencePoolSpec.model_validate(
        {
            "model": {"path": "/models/m", "servedName": "policy"},
            "engine": {"vllm": {"tensorParallelSize": 8, "pipelineParallelSize": 2}},
            "replicas": 1,
            "allocation": {"nodes": 2, "gpusPerNode": 8},
        }
    )
    first = " ".join(engine_command(spec, UDS, Place(0, 2, "10.0.0.7", 4711)).argv)
    second = " ".join(engine_command(spec, UDS, Place(1, 2, "10.0.0.7", 4711)).argv)
    meeting = "--distributed-executor-backend mp --nnodes 2 --node-rank {} --master-addr 10.0.0.7 --master-port 4711"
    assert meeting.format(0) in first
    assert "--uds /scratch/ry-1/engine.sock" in first
    assert meeting.format(1) in second
    assert "serve /models/m --headless" in second
    assert "--uds" not in second
    with pytest.raises(ValidationError, match=r"must be a multiple of `allocation\.nodes`"):
        InferencePoolSpec.model_validate({**spec.model_dump(), "allocation": {"nodes": 3}})


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
