"""The gateway in front of vLLM for CPUs, in both of its dialects: several answers, and the likeliest tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.process.owned_engine import OwnedEngine, start_engine
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.endpoint_routes import GENERATE
from rollyard.tokens.token_client import TokenClient
from simulation.endpoint_sampler import EndpointSampler
from tests.gateway.conftest import Gateway
from tests.support import make
from tests.support.until import until
from tests.support.vllm_env import vllm_python

__all__ = ["vllm_python"]
pytestmark = [pytest.mark.heavy, pytest.mark.long]
QUESTION: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]


async def healthy(http: aiohttp.ClientSession, engine: OwnedEngine) -> bool:
    assert engine.returncode is None
    try:
        async with http.get("http://engine/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def test_the_likeliest_tokens_are_vllms_own(
    vllm_python: str, model_dir: Path, template: ChatTemplate, tmp_path: Path
) -> None:
    model = {"path": str(model_dir), "servedName": "policy"}
    engine = {"vllm": {"python": vllm_python, "extraArgs": ["--dtype", "float32"]}}
    asked = InferencePoolSpec.model_validate({"model": model, "engine": engine, "replicas": 1})
    served = await start_engine(await LaunchPlan(asked, tmp_path / "e")())
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "e"), limit=0)) as http:
            await until(lambda: healthy(http, served), 400)
            found = [await answers(TokenClient(http), template, own) for own in (True, False)]
    finally:
        await served.end()
    assert found[0] == found[1]


async def answers(client: TokenClient, template: ChatTemplate, own: bool) -> list[Any]:
    """Return the greedy answer's tokens, each with its likeliest ones. `own`: the dialect of our own engines."""
    endpoint = make.endpoint(url="http://engine", ca=own)
    config = SessionConfig("policy", Sampling(max_tokens=24), fixed=False)
    gateway = Gateway(template, EndpointSampler(client, endpoint, template.stop_ids), config)
    assert own or (await client._routes.of(endpoint)).dialect is GENERATE
    async with gateway.serving(), openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s") as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "top_logprobs": 4}
        said = await ai.chat.completions.create(**asked, n=4, temperature=1.5, seed=3)
        session = gateway.sessions["s"]
        assert len({choice.message.content for choice in said.choices}) > 1
        assert (len(session.segments()), session.breaks()) == (4, {})
        for choice, segment in zip(said.choices, session.segments(), strict=True):
            recorded = [lp for lp, mask in zip(segment.logprobs, segment.loss_mask, strict=True) if mask]
            content = choice.logprobs.content  # type: ignore[union-attr]
            assert [one.logprob for one in content] == recorded[: len(content)]
            assert {len(one.top_logprobs) for one in content} == {4}
            for one in content:
                likeliest = [top.logprob for top in one.top_logprobs]
                assert likeliest == sorted(likeliest, reverse=True)
                assert one.logprob <= likeliest[0]
        greedy = await ai.chat.completions.create(**asked, temperature=0, stream=True)
        entries: list[Any] = []
        async for chunk in greedy:
            entries += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        assert all(one.bytes == one.top_logprobs[0].bytes for one in entries)
        return [(one.bytes, [(top.bytes, round(top.logprob, 2)) for top in one.top_logprobs[:2]]) for one in entries]
