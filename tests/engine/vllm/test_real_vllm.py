"""vLLM itself, built for CPUs, as a node would start it: what it says when it cannot, and a gang of two."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.process.owned_engine import OwnedEngine, start_engine
from rollyard.host.node_cache import node_cache
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.images import default_root
from tests.support.vllm_env import vllm_python

__all__ = ["vllm_python"]
pytestmark = pytest.mark.heavy

MODEL = Path(__file__).resolve().parents[3] / "examples" / "tiny_policy" / "model"
WAIT_SECONDS = 400.0


def spec(model: Path, allocation: Any = None, **vllm: Any) -> InferencePoolSpec:
    text = {"model": {"path": str(model), "servedName": "policy"}, "engine": {"vllm": vllm}, "replicas": 1}
    return InferencePoolSpec.model_validate({**text, "allocation": allocation or {}})


async def why(asked: InferencePoolSpec, uds: Path) -> str:
    with pytest.raises(EngineFailed) as failed:
        await asyncio.wait_for(Supervisor(LaunchPlan(asked, uds), uds, max_deaths=1).run(), WAIT_SECONDS)
    return str(failed.value)


@pytest.mark.long  # each start takes 14 s of CPU time
async def test_a_model_that_it_cannot_serve_is_told_in_its_own_words(vllm_python: str, tmp_path: Path) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    shutil.copy(MODEL / "model.safetensors", empty)
    assert (await why(spec(empty, python=vllm_python), tmp_path / "e")).startswith(
        f"EngineFailed: exit code 1: Invalid repository ID or local directory specified: '{empty}'"
    )


@pytest.mark.long  # as above; tests/engine/process/test_crash_reason.py has what it says then
async def test_too_little_memory_is_told_as_such(vllm_python: str, tmp_path: Path) -> None:
    small = ["--kv-cache-memory-bytes", "100000"]
    assert (await why(spec(MODEL, python=vllm_python, extraArgs=small), tmp_path / "e")).startswith("OutOfMemory: ")


async def test_it_is_found_in_a_container_image(vllm_python: str, tmp_path: Path) -> None:
    """The image has this machine's /usr and no vLLM; that is bound into it, as a site may bind its own."""
    try:
        await asyncio.to_thread(find_runtime, "apptainer")
    except SandboxStartFailed as error:
        pytest.skip(f"no Apptainer: {error}")
    image = (await asyncio.to_thread(default_root, node_cache())).layers[0]
    folders = [Path(vllm_python).parents[1], Path(os.path.realpath(vllm_python)).parents[1]]
    binds = ["/usr:/usr:ro", *(str(f) for f in folders if not f.is_relative_to("/usr"))]
    around = {"image": str(image), "env": {"APPTAINER_BIND": ",".join(binds)}}
    command = await LaunchPlan(spec(MODEL, python=vllm_python, **around), tmp_path / "e")()
    assert command.argv[command.argv.index(str(image)) + 1] == vllm_python
    assert "--enable-scale-out" in command.argv
    assert command.argv[command.argv.index("--bind") + 1] == str(tmp_path)
    bare = spec(MODEL, python=os.path.realpath(sys.executable), **around)
    with pytest.raises(EngineFailed, match=r"^EngineMissing: "):
        await LaunchPlan(bare, tmp_path / "e")()


@pytest.mark.long
async def test_a_gang_of_two_serves_as_one(vllm_python: str, tmp_path: Path) -> None:
    """Two ranks of vLLM's own on one machine, over gloo; on GPUs it is NCCL, and there it was not tried."""
    split = {"tensorParallelSize": 2, "extraArgs": ["--dtype", "float32"]}
    asked = spec(MODEL, {"nodes": 2}, python=vllm_python, **split)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    places = [GangRank(rank, 2, "127.0.0.1", port) for rank in range(2)]
    commands = [await LaunchPlan(asked, tmp_path / f"{place.rank}", place)() for place in places]
    ranks = [await start_engine(command) for command in commands]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "0"))) as http:
            await answers(http, ranks)
            prompt = list(range(20, 60))
            body = {"model": "policy", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 0}
            async with http.post("http://engine/v1/completions", json=body | {"return_token_ids": True}) as answer:
                choice = (await answer.json())["choices"][0]
        assert choice["prompt_token_ids"] == prompt
        recomputed = await asyncio.to_thread(logprobs, prompt, choice["token_ids"])
        told = choice["logprobs"]["token_logprobs"]
        assert max(abs(a - b) for a, b in zip(recomputed, told, strict=True)) < 0.02
    finally:
        for rank in ranks:
            await rank.end()


async def answers(http: aiohttp.ClientSession, ranks: Sequence[OwnedEngine]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            assert all(rank.returncode is None for rank in ranks)
            try:
                async with http.get("http://engine/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


def logprobs(prompt: list[int], sampled: list[int]) -> list[float]:
    """As transformers says them."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)(
            torch.tensor([prompt + sampled])
        ).logits[0]
    table = torch.log_softmax(logits, -1)
    return [table[len(prompt) + i - 1, token].item() for i, token in enumerate(sampled)]
