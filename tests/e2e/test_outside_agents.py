"""An agent outside of any sandbox, by the real openai client through a real server's door, while engines die."""

from __future__ import annotations

import openai
import pytest
from e2e_yard import MODEL, Yard, kill
from recompute import differences

from rollyard.client.client import AsyncClient
from rollyard.errors import NotFound
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.session import SessionOpened, SessionRequest


def agent(client: AsyncClient, opened: SessionOpened) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=client.context.tls())
    return openai.AsyncOpenAI(base_url=opened.base_url, api_key=opened.key, http_client=http, max_retries=0)


async def test_an_outside_agents_calls_outlive_their_engine_and_come_to_one_segment(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client, demo={"replicas": 0})
        await yard.until(lambda: two_ready(client))
        sampling = Sampling(max_tokens=400, temperature=3, seed=1)  # so hot that it does not come to an end
        opened = await client.open_session(SessionRequest(pool="policy", sampling=sampling))
        assert opened.durable is False
        messages = [{"role": "user", "content": "What is 3 * 4?"}]
        engine = engine_of(yard, opened.endpoint)
        assert len(engine) == 1
        async with agent(client, opened) as ai:
            for number in range(2):
                stream = await ai.chat.completions.create(model="any", messages=messages, stream=True)  # type: ignore[call-overload]
                told = []
                async for chunk in stream:
                    told.append(chunk.choices[0].delta.content or "")
                    if number == 1 and len(told) == 8:
                        kill(engine[0])
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
        with pytest.raises(NotFound, match="memory alone"):
            await client.session("lost")
        lost = lost.model_copy(update={"base_url": f"{client.context.url}/gateway/s/lost/v1"})
        async with agent(client, lost) as ai:
            with pytest.raises(openai.APIStatusError, match="POST /v1/sessions") as gone:
                await ai.chat.completions.create(model="any", messages=[{"role": "user", "content": "Still there?"}])
            assert gone.value.status_code == 410


async def two_ready(client: AsyncClient) -> bool:
    top = await client.top("default")
    return sum(endpoint.ready for pool in top.inference_pools for endpoint in pool.endpoints) == 2


def engine_of(yard: Yard, endpoint: str) -> list[int]:
    """The pids of its engine; the endpoint is called after its allocation."""
    return [pid for pid in yard.processes("rollyard.engines.embedded") if belongs(pid, endpoint.rpartition("/")[2])]


def belongs(pid: int, allocation: str) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as cmdline, open(f"/proc/{pid}/environ", "rb") as environ:
        return allocation.encode() in cmdline.read() + environ.read()
