"""An agent outside of any sandbox, by the real openai and anthropic clients through a real server's API, while engines and
the server die."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.session import SessionOpened, SessionRequest
from tests.support.lazy_module import LazyModule
from tests.support.recompute import differences
from tests.support.yard import MODEL, Yard, kill

pytestmark = pytest.mark.slow(75)

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")


def agent(client: AsyncClient, opened: SessionOpened, retries: int = 0) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=client.context.tls())
    return openai.AsyncOpenAI(base_url=opened.base_url, api_key=opened.key, http_client=http, max_retries=retries)


def claude_of(client: AsyncClient, opened: SessionOpened, retries: int = 12) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(verify=client.context.tls())
    url, key = opened.anthropic_base_url, opened.key
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, http_client=http, max_retries=retries)


async def test_an_outside_agents_calls_outlive_their_engine_and_come_to_one_segment(yard: Yard, long_run: bool) -> None:
    async with yard.client() as client:
        await yard.apply(client, demo={"replicas": 0})
        await yard.until(lambda: two_ready(client))
        sampling = Sampling(max_tokens=400, temperature=100, seed=1)  # so hot that it does not come to an end
        opened = await client.open_session(SessionRequest(pool="policy", sampling=sampling))
        assert opened.durable
        messages = [{"role": "user", "content": "What is 3 * 4?"}]
        (engine,) = yard.engines(opened.endpoint)
        logprobs: list[Any] = []
        async with agent(client, opened) as ai:
            for number in range(2):
                wanted = {"stream": True, "logprobs": True, "top_logprobs": 2}
                stream = await ai.chat.completions.create(model="any", messages=messages, **wanted)  # type: ignore[call-overload]
                told = []
                async for chunk in stream:
                    found = chunk.choices[0].logprobs
                    logprobs += found.content if found is not None else []
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
        recorded = [logprob for logprob in segment.logprobs if logprob is not None]
        left = iter(recorded)  # a token that ended a turn has no entry
        assert all(one.logprob in left for one in logprobs)
        assert len(recorded) - 2 <= len(logprobs) <= len(recorded)
        assert {len(one.top_logprobs) for one in logprobs} == {2}

        whole = await converse(yard, client, "whole", ())
        killed = await converse(yard, client, "killed", range(5) if long_run else (1, 2))
        assert killed == whole


async def converse(yard: Yard, client: AsyncClient, id: str, kills: Collection[int]) -> object:
    """Make four calls; return the ids, masks and texts. The server is killed in the middle of the calls with the numbers
    `kills`; 4 is the time before the end. The clients' own retries go on, or the agent repeats a broken stream."""
    sampling = Sampling(max_tokens=60, temperature=2, seed=3)
    opened = await client.open_session(SessionRequest(pool="policy", id=id, sampling=sampling))
    said: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]

    async def restart() -> None:
        await asyncio.to_thread(yard.kill)
        await asyncio.to_thread(yard.start)

    async def answered(number: int, call: Callable[[], Awaitable[str]]) -> None:
        task = asyncio.ensure_future(call())
        if number in kills:
            await yard.until(lambda: in_flight_or(task, client, id))
            await restart()
        said.extend([{"role": "assistant", "content": await task}, {"role": "user", "content": "And 4 * 5?"}])

    async def create() -> str:
        answer = await ai.chat.completions.create(model="any", messages=said)
        return answer.choices[0].message.content or ""

    async def stream() -> str:
        while True:
            with contextlib.suppress(openai.APIConnectionError, httpx2.TransportError):
                chunks = await ai.chat.completions.create(model="any", messages=said, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def message() -> str:
        answer = await claude.messages.create(model="any", messages=said, max_tokens=60)
        return "".join(block.text for block in answer.content if block.type == "text")

    async with agent(client, opened, retries=12) as ai, claude_of(client, opened) as claude:
        for number, call in enumerate((create, stream, message, create)):
            await answered(number, call)
    if 4 in kills:
        await restart()
    record = await client.close_session(id)
    assert record.session.durable
    assert (record.session.calls, record.trajectory.breaks) == (4, {})
    (segment,) = record.trajectory.segments
    return segment.token_ids, segment.loss_mask, [turn.text for turn in record.trajectory.turns]


async def in_flight_or(task: asyncio.Future[str], client: AsyncClient, id: str) -> bool:
    """Return whether the call is being made, or has ended before this was seen."""
    return task.done() or (await client.session(id)).session.in_flight > 0


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


SESSIONS, CALLS = 40, 12


@pytest.mark.long
async def test_agents_at_once_lose_nothing_while_the_server_is_killed_again_and_again(yard: Yard) -> None:
    draw = random.Random(5)
    async with yard.client() as client:
        await yard.apply(client, demo={"replicas": 0}, policy={"replicas": 1})
        await yard.until(lambda: ready(client))
        opened = [
            await client.open_session(
                SessionRequest(pool="policy", id=f"s{n}", sampling=Sampling(max_tokens=40, seed=n))
            )
            for n in range(SESSIONS)
        ]
        agents = [asyncio.create_task(converse_by_both(client, one)) for one in opened]
        kills = 0
        while not all(task.done() for task in agents):
            await asyncio.sleep(draw.uniform(0.1, 1.5))  # the moment of the kill is what the test varies
            await asyncio.to_thread(yard.kill)
            await asyncio.to_thread(yard.start)
            kills += 1
            calls = sum([(await client.session(one.id)).session.calls for one in opened])
            await yard.until(lambda calls=calls: progressed(client, opened, calls, agents))
        assert kills > 1
        for one, task in zip(opened, agents, strict=True):
            record = await client.close_session(one.id)
            (segment,) = record.trajectory.segments
            assert record.trajectory.breaks == {}
            assert [turn.text.strip() for turn in record.trajectory.turns] == task.result()
            assert sum(segment.loss_mask) == sum(turn.response_length for turn in record.trajectory.turns)
            assert max(differences([record.trajectory], MODEL)) < 0.02


async def ready(client: AsyncClient) -> bool:
    top = await client.top("default")
    return any(endpoint.ready for pool in top.inference_pools for endpoint in pool.endpoints)


async def progressed(client: AsyncClient, opened: list[SessionOpened], calls: int, agents: list[Any]) -> bool:
    now = sum([(await client.session(one.id)).session.calls for one in opened])
    return now > calls or all(task.done() for task in agents)


async def converse_by_both(client: AsyncClient, opened: SessionOpened) -> list[str]:
    """Make CALLS calls, by turns with openai's client, streamed and not, and with anthropic's; return the answers."""
    said: list[Any] = [{"role": "user", "content": f"What is 3 * 4, {opened.id}?"}]
    answers = []
    async with agent(client, opened, retries=30) as ai, claude_of(client, opened, retries=30) as claude:
        for number in range(CALLS):
            answers.append(await one_call(ai, claude, said, number % 3))
            said += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": "And 4 * 5?"}]
    return [answer.strip() for answer in answers]


async def one_call(ai: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, said: list[Any], kind: int) -> str:
    if kind == 0:
        answer = await ai.chat.completions.create(model="any", messages=said)
        return answer.choices[0].message.content or ""
    if kind == 1:
        message = await claude.messages.create(model="any", messages=said, max_tokens=40)
        return "".join(block.text for block in message.content if block.type == "text")
    while True:
        with contextlib.suppress(openai.APIError, httpx2.TransportError):
            chunks = await ai.chat.completions.create(model="any", messages=said, stream=True)
            parts = [chunk async for chunk in chunks]
            if parts and parts[-1].choices[0].finish_reason is not None:
                return "".join(part.choices[0].delta.content or "" for part in parts)
