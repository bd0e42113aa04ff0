"""The same programs as in `test_model_clients`, on vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_sessions import check, run
from tests.support.model_clients import CLIENTS
from tests.support.yard import Yard

pytestmark = pytest.mark.long

READY_SECONDS = 1200.0


async def test_each_client_ends_with_the_ids_that_were_sampled(
    vllm_python: str, policy: Path, yard: Yard, tmp_path: Path
) -> None:
    async with yard.client() as client:
        # in float32, as the logprobs are compared with those of transformers
        vllm = {"python": vllm_python, "extraArgs": ["--dtype", "float32"]}
        engine = {"engine": {"embedded": None, "vllm": vllm}, "allocation": {"memory": "4G"}}
        await yard.apply(client, demo={"replicas": 0}, policy={**engine, "replicas": 1, "model": {"path": str(policy)}})
        await yard.ready(client, READY_SECONDS)
        for program in CLIENTS:
            folder = tmp_path / program.program
            folder.mkdir()
            check(program, await run(client, yard, program, folder), policy)
