"""An agent outside of any sandbox, by the real openai client through a real server's API, while engines die."""

from __future__ import annotations

import openai
import pytest

from rollyard.client import AsyncClient
from rollyard.core.errors import NotFound
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.session import SessionOpened, SessionRequest
from tests.support.recompute import differences
from tests.support.yard import MODEL, Yard, kill


def agent(client: AsyncClient, opened: SessionOpened) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=client.context.tls())
    return openai.AsyncOpenAI(base_url=opened.base_url, api_key=opened.key, http_client=http, max_retries=0)


async def test_an_outside_agents_calls_outlive_their_engine_and_come_to_one_segment(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client, demo={"replicas": 0})
        await yard.until(lambda: two_ready(client))
        sampling = Sampling(max_tokens=400, temperature=100, seed=1)  # so hot that it does not come to an end
        opened = await client.open_session(SessionRequest(pool="policy", sampling=sampling))
        assert opened.durable is False
        messages = [{"role": "user", "content": "What is 3 * 4?"}]
        (engine,) = yard.engines(opened.endpoint)
        async with agent(client, opened) as ai:
            for number in range(2):
                stream = await ai.chat.completions.create(model="any", messages=messages, stream=True)  # type: ignore[call-overload]
                told = []
                async for chunk in stream:
                    told.append(chunk.choices[0].delta.content or "")
                    if number == 1 and len(told) == 8:
                        kill(engine)
                messages += [{"role": "assistant", "content": "".join(told)}, {"role": "user", "content": "And 4 * 5?"}]
        record = await client.close_session(opened.id)
        assert record.session.endpoint != opened.endpoint, "it went on elsewhere"
        (segment,) = record.trajectory.segments
        assert record.trajectory.breaks == {}
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in record.trajectory.turns) > 100
        assert max(differences([record.trajectory], MODEL)) < 0.02

        lost = await client.open_session(SessionRequest(pool="policy", id="lost"))
        yard.stop()
        yard.start()
    async with yard.client() as client:
        with pytest.raises(NotFound, match="exist only in its memory"):
            await client.session("lost")
        lost = evolve(lost, base_url=f"{client.context.url}/gateway/s/lost/v1")
        async with agent(client, lost) as ai:
            with pytest.raises(openai.APIStatusError, match="POST /v1/sessions") as gone:
                await ai.chat.completions.create(model="any", messages=[{"role": "user", "content": "Still there?"}])
            assert gone.value.status_code == 410


async def two_ready(client: AsyncClient) -> bool:
    top = await client.top("default")
    return sum(endpoint.ready for pool in top.inference_pools for endpoint in pool.endpoints) == 2


async def test_a_pool_at_zero_comes_up_for_an_agent_that_wants_in(yard: Yard) -> None:
    async with yard.client() as client:
        scaling = {"minReplicas": 0, "maxReplicas": 2}
        await yard.apply(client, demo={"replicas": 0}, policy={"replicas": None, "autoscaling": scaling})
        key = ObjectKey(kind="InferencePool", namespace="default", name="policy")

        async def observed() -> bool:
            pool = await client.get(key)
            assert isinstance(pool, InferencePool)
            return pool.status.observed_generation > 0

        await yard.until(observed)
        assert await yard.jobs() == []
        opened = await client.open_session(SessionRequest(pool="policy"), wait=240)
        async with agent(client, opened) as ai:
            said = await ai.chat.completions.create(model="any", messages=[{"role": "user", "content": "1 + 1?"}])
        assert said.choices[0].message.content
        assert len(await yard.jobs()) == 1
