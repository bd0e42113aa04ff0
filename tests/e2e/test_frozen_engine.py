"""A model server that is suspended in the middle of calls: they go on at another with the ids they have, and at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import openai
import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.process_tree import stat
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import EndpointStatus, InferencePool
from rollyard.kinds.rollout import Sampling, Stage
from rollyard.kinds.session import SessionOpened, SessionRequest
from tests.support.recompute import differences
from tests.support.standstill import freeze
from tests.support.yard import MODEL, Yard, ready_yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(40)]

KEY = ObjectKey(kind="InferencePool", namespace="default", name="policy")
ENDLESS = Sampling(max_tokens=3000, temperature=1000, seed=1)
"""Tokens so random that hardly a turn comes to an end by itself soon."""
PATIENT = {"patience": {"idleSeconds": 900, "firstTokenSeconds": 900}}
"""No caller leaves a silent server by its own clock."""


@contextlib.contextmanager
def frozen(yard: Yard, endpoint: str) -> Iterator[None]:
    """The engine, the owner of its processes and the model server, as `scontrol suspend` leaves a job."""
    (engine,) = yard.engines(endpoint)
    owner = int(stat(engine)[1])
    pids = [int(stat(owner)[1]), owner, engine]
    try:
        for pid in pids:
            freeze(pid)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def endpoints(client: AsyncClient) -> dict[str, EndpointStatus]:
    pool = await client.get(KEY)
    assert isinstance(pool, InferencePool)
    return {endpoint.id: endpoint for endpoint in pool.status.endpoints}


@contextlib.asynccontextmanager
async def call(client: AsyncClient, opened: SessionOpened) -> AsyncIterator[tuple[str, asyncio.Task[str]]]:
    """Make a call; give the first piece of its text, and the reading of the rest."""
    http = openai.DefaultAsyncHttpxClient(verify=client.context.tls())
    async with openai.AsyncOpenAI(base_url=opened.base_url, api_key=opened.key, http_client=http) as ai:
        question = [{"role": "user", "content": "What is 3 * 4?"}]
        stream = await ai.chat.completions.create(model="any", messages=question, stream=True)  # type: ignore[call-overload]
        texts = (chunk.choices[0].delta.content or "" async for chunk in stream)
        first = ""
        while not first:
            first = await anext(texts)

        async def rest() -> str:
            return "".join([text async for text in texts])

        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            yield first, tasks.create_task(rest())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def patient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    async with ready_yard(tmp_path_factory, policy=PATIENT, demo={"replicas": 1}) as made:
        yield made


async def test_calls_on_a_suspended_engine_go_on_elsewhere_while_it_is_suspended(
    patient: tuple[Yard, AsyncClient],
) -> None:
    for attempt in range(5):
        if await suspended_in_a_call(*patient, f"try-{attempt}"):
            return
    pytest.fail("no call was under way when its engine was suspended")


async def suspended_in_a_call(yard: Yard, client: AsyncClient, prefix: str) -> bool:
    """Suspend the engine that a session's call and rollouts are on, and check that they go on elsewhere.

    Return False if the engine had sampled the call's last token before: on a busy machine it may have.
    """
    # first, since the server loads a tokenizer for it, which takes a busy machine many seconds
    opened = await client.open_session(SessionRequest(pool="policy", sampling=ENDLESS))
    ids = await client.submit(requests(8, 0, prefix=prefix, sampling=ENDLESS, agent={"max_turns": 1}))

    async def shared() -> str | None:
        """The session's endpoint, once rollouts are on it; a busy machine's late heartbeats may move all of them."""
        endpoint = (await client.session(opened.id)).session.endpoint
        live = [r async for r in client.rollouts() if not r.status.terminal]
        on_it = any(r.stage is Stage.RUN and r.endpoints["policy"] == endpoint for r in live)
        return endpoint if on_it or not live else None

    await yard.until(shared)
    async with call(client, opened) as (told, rest):
        there = await yard.until(shared)
        with frozen(yard, there):
            told += await rest
            ended = await yard.gather(client, ids, 300)

            async def told_as_not_ready() -> bool:
                return not (await endpoints(client))[there].ready

            await yard.until(told_as_not_ready)  # it is still suspended
    record = await client.close_session(opened.id)
    if record.session.endpoint == there:
        return False
    (segment,) = record.trajectory.segments
    (turn,) = record.trajectory.turns
    assert (sum(segment.loss_mask), told) == (turn.response_length, turn.text.strip())
    assert {t.attempt for t in ended} == {1}
    for trajectory in ended:
        assert sum(sum(s.loss_mask) for s in trajectory.segments) == sum(t.response_length for t in trajectory.turns)
    # were an id recorded twice or lost, what follows it would not be what the model says there
    assert max(differences([record.trajectory, *ended], MODEL)) < 0.02
    versions = {v for t in [record.trajectory, *ended] for s in t.segments for v in s.weights_version if v}
    assert len(versions) == 1
    return True


async def test_a_call_that_has_nowhere_to_go_waits_and_says_so(patient: tuple[Yard, AsyncClient]) -> None:
    yard, client = patient
    await client.scale(KEY, 1)

    async def one_is_left() -> bool:
        return [e.ready and not e.draining for e in (await endpoints(client)).values()] == [True]

    await yard.until(one_is_left)
    for _ in range(5):
        opened = await client.open_session(SessionRequest(pool="policy", sampling=ENDLESS))
        async with call(client, opened) as (_, rest):
            with frozen(yard, opened.endpoint):

                async def says_so_or_ended(opened: SessionOpened = opened, rest: asyncio.Task[str] = rest) -> bool:
                    return rest.done() or "does not answer" in await waiting(client, opened)

                await yard.until(says_so_or_ended)
                waited = not rest.done()  # else a busy machine's engine sampled the last token before
            await rest
        record = await client.close_session(opened.id)
        if waited:
            break
    assert waited, "no call was under way when its engine was suspended"
    assert record.session.waiting == ""
    assert sum(record.trajectory.segments[0].loss_mask) == record.trajectory.turns[0].response_length
    assert max(differences([record.trajectory], MODEL)) < 0.02


async def waiting(client: AsyncClient, opened: SessionOpened) -> str:
    return (await client.session(opened.id)).session.waiting
