"""From a pool's spec to the command line of its engine."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.core.errors import Invalid
from rollyard.engine.launch.command_line import Host, engine_command
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.process.child_process import EngineCommand, EngineFailed
from rollyard.engine.vllm.installed_vllm import OTHER_DISTRIBUTION_NAME, VllmBuild
from rollyard.kinds.inference_pool import InferencePoolSpec

UDS = Path("/scratch/ry-1/engine.sock")


KNOWN = frozenset(
    {"--uds", "--headless", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--generation-config"}
    | {"--enable-prompt-tokens-details", "--enable-scale-out", "--disable-access-log-for-endpoints", "--enforce-eager"}
    | {"--no-enable-chunked-prefill", "--max-num-batched-tokens", "--kv-cache-memory-bytes", "--logprobs-mode"}
)
CUDA = VllmBuild("0.32.0", "cuda", KNOWN)


def command(
    engine: dict[str, Any], build: VllmBuild = CUDA, context: int | None = None, more: Any = None, **model: Any
) -> EngineCommand:
    replicas = {} if "external" in engine else {"replicas": 1}
    spec = {
        "model": {"path": "/models/m", "servedName": "policy", **model},
        "engine": engine,
        **replicas,
        **(more or {}),
    }
    python = (engine.get("vllm") or {}).get("python", "python3")
    return engine_command(InferencePoolSpec.model_validate(spec), UDS, host=Host([python], build, context))


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
        "/opt/vllm/bin/python -m vllm.entrypoints.cli.main serve /models/m --served-model-name policy "
        "--uds /scratch/ry-1/engine.sock "
        "--tensor-parallel-size 2 --pipeline-parallel-size 4 --tokenizer /models/tok --max-model-len 8192 "
        "--generation-config vllm --enable-prompt-tokens-details --enable-scale-out "
        "--disable-access-log-for-endpoints /health,/metrics "
        "--enforce-eager --tokenizer-mode slow"
    )
    routes = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}  # behind a socket of ours
    assert made.env == {"HF_HUB_OFFLINE": "0", "VLLM_CPU_KVCACHE_SPACE": "1", **routes}
    own = {"VLLM_RPC_BASE_PATH": "/scratch/ry-1", "TMPDIR": "/scratch/ry-1"}
    own["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"  # the next engine reads it
    assert made.defaults == {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **own}
    assert made.foreign


def test_which_logprobs_vllm_gives_is_the_pools_to_say() -> None:
    assert "--logprobs-mode" not in command({"vllm": {"logprobsMode": "raw"}}).argv
    argv = " ".join(command({"vllm": {"logprobsMode": "processed"}}).argv)
    assert "--logprobs-mode processed_logprobs" in argv
    with pytest.raises(EngineFailed, match="does not know --logprobs-mode"):
        command({"vllm": {"logprobsMode": "processed"}}, VllmBuild("0.10.2", "cuda", KNOWN - {"--logprobs-mode"}))
    with pytest.raises(ValidationError, match="write `logprobsMode"):
        command({"vllm": {"extraArgs": ["--logprobs-mode=raw_logits"]}})


def test_a_release_gets_no_option_that_it_does_not_know() -> None:
    argv = command({"vllm": {}}, VllmBuild("0.10.2", "cuda", frozenset(["--uds", "--generation-config"]))).argv
    assert argv[argv.index("--generation-config") + 1] == "vllm"
    assert not {"--enable-scale-out", "--enable-prompt-tokens-details", "--disable-access-log-for-endpoints"} & set(
        argv
    )


@pytest.mark.parametrize(
    ("version", "options", "engine", "words"),
    [
        ("0.10.2", KNOWN - {"--uds"}, {}, r"^EngineTooOld: vLLM 0\.10\.2 does not know --uds; install a later release"),
        ("0.9.2", KNOWN, {}, r"^EngineTooOld: vLLM 0\.9\.2 does not return token ids; install 0\.10\.2 or later"),
    ],
)
def test_what_we_cannot_do_without_is_said(version: str, options: frozenset[str], engine: Any, words: str) -> None:
    with pytest.raises(EngineFailed, match=words):
        command({"vllm": engine}, VllmBuild(version, "cuda", options))


@pytest.mark.parametrize("version", ["dev", "0.10.2rc1.dev3+g0123abc", "0.33.0+cu130"])
def test_a_build_of_ones_own_is_let_through(version: str) -> None:
    assert command({"vllm": {}}, VllmBuild(version, "cuda", KNOWN)).argv


def test_on_a_cpu_it_gets_what_a_server_needs_there_and_the_user_has_the_last_word() -> None:
    vllm = {"extraArgs": ["--max-num-batched-tokens", "64"], "env": {"OMP_NUM_THREADS": "7"}}
    cpu = VllmBuild("0.32.0", "cpu", KNOWN, named=False)
    made = command({"vllm": vllm}, cpu, 4096, {"allocation": {"cpusPerTask": 4, "memory": "16G"}})
    assert made.argv[:4] == ["python3", *OTHER_DISTRIBUTION_NAME, "serve"]
    text = " ".join(made.argv)
    assert (
        "--enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens 4096 --max-num-batched-tokens 64" in text
    )
    assert f"--kv-cache-memory-bytes {4 << 30}" in text
    assert made.defaults["OMP_NUM_THREADS"] == "4"
    assert made.env["OMP_NUM_THREADS"] == "7"
    alone = "VLLM_ENABLE_V1_MULTIPROCESSING"
    assert made.defaults[alone] == "0"
    assert alone not in command({"vllm": {"tensorParallelSize": 2}}, cpu, 4096).defaults, "ranks are processes"


def test_a_gang_has_its_server_on_the_first_node_and_workers_on_the_others() -> None:
    spec = InferencePoolSpec.model_validate(
        {
            "model": {"path": "/models/m", "servedName": "policy"},
            "engine": {"vllm": {"tensorParallelSize": 8, "pipelineParallelSize": 2}},
            "replicas": 1,
            "allocation": {"nodes": 2, "gpusPerNode": 8},
        }
    )
    host = Host(["python3"], CUDA)
    first = " ".join(engine_command(spec, UDS, GangRank(0, 2, "10.0.0.7", 4711), host).argv)
    second = " ".join(engine_command(spec, UDS, GangRank(1, 2, "10.0.0.7", 4711), host).argv)
    meeting = "--distributed-executor-backend mp --nnodes 2 --node-rank {} --master-addr 10.0.0.7 --master-port 4711"
    assert meeting.format(0) in first
    assert "--uds /scratch/ry-1/engine.sock" in first
    assert meeting.format(1) in second
    assert "serve /models/m --served-model-name policy --headless" in second
    assert "--uds" not in second
    alone = Host(["python3"], VllmBuild("0.11.0", "cuda", frozenset(["--uds", "--headless"])))
    with pytest.raises(EngineFailed, match="does not know --nnodes, --node-rank, --master-port"):
        engine_command(spec, UDS, GangRank(1, 2, "10.0.0.7", 4711), alone)
    with pytest.raises(ValidationError, match=r"must be a multiple of `allocation\.nodes`"):
        InferencePoolSpec.model_validate({**spec.model_dump(), "allocation": {"nodes": 3}})


def test_what_vllm_knows_best_is_left_to_it() -> None:
    argv = command({"vllm": {}}).argv
    assert argv[0] == "python3"
    assert not {"--max-model-len", "--tokenizer", "--host", "--port", "--api-key"} & set(argv)


def test_the_embedded_engine_runs_in_our_own_python() -> None:
    made = command({"embedded": {"maxModelLen": 512, "maxSequences": 8}})
    assert made.argv == [
        *(sys.executable, "-m", "rollyard.engine.embedded", "--model", "/models/m", "--served-name", "policy"),
        *("--uds", str(UDS), "--max-sequences", "8", "--max-model-len", "512"),
    ]
    assert "--max-model-len" not in command({"embedded": {}}).argv


def test_an_external_engine_is_not_for_us_to_start() -> None:
    with pytest.raises(Invalid, match="others start"):
        command({"external": {"endpoints": [{"url": "http://node7:8000/v1"}]}})


def test_a_deadline_for_what_others_start_is_refused() -> None:
    external = {"external": {"endpoints": [{"url": "http://node7:8000/v1"}]}, "startupTimeoutSeconds": 60}
    with pytest.raises(ValidationError, match="leave out `startupTimeoutSeconds`"):
        command(external)
