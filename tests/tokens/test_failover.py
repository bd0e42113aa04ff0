"""Two real engines, one of which is killed in the middle of a stream."""

from __future__ import annotations

import asyncio
import math
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import Constraint
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.failover import FailoverPolicy
from rollyard.tokens.sampled_tokens import Sampled, TurnSampling
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint
from tests.support import make
from tests.support.reference_model import sampled_logprobs

MAX_TOKENS = 400
KILLED_AT = 11
"""Number of tokens after which an engine is killed."""
TOKEN_IDS = re.compile(rb'"token_ids":\s*\[([^\]]+)\]')


@asynccontextmanager
async def listening(socket: Path, most: float = math.inf) -> AsyncIterator[str]:
    """A TCP address whose bytes go to the Unix socket and back, broken off when the engine breaks off.

    Of an answer the events up to the one with token number `most` arrive, and nothing more.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 10):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def pump_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tokens, event = 0, b""
        try:
            while data := await reader.read(1 << 10):
                for line in data.splitlines(keepends=True) if tokens < most else ():
                    writer.write(line)
                    event += line
                    if event.endswith(b"\n\n"):
                        tokens, event = tokens + sum(len(ids[1].split(b",")) for ids in TOKEN_IDS.finditer(event)), b""
                    if tokens >= most:
                        break
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_unix_connection(socket)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, upstream[1]), pump_events(upstream[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def endpoint(name: str, socket: Path, most: float = math.inf) -> AsyncIterator[Endpoint]:
    async with listening(socket, most) as url:
        yield make.endpoint(name, url, version=f"weights of {name}")


async def long_answer(client: TokenClient, one: Endpoint, prompt: list[int], stop_ids: Sequence[int]) -> Any:
    """A seed whose answer is long enough to be cut, and that answer."""
    for seed in range(50):
        sampling = TurnSampling(seed=seed, temperature=1.6, top_logprobs=3)
        sampled = await client.complete(one, prompt, sampling, MAX_TOKENS, stop_ids)
        if len(sampled.token_ids) > 100:
            return sampling, sampled
    raise AssertionError("no long answer in 50")


async def test_a_turn_survives_its_engine(start_engine: Any, model_dir: Path) -> None:
    first, second = start_engine(), start_engine()
    template = ChatTemplate.load(model_dir)
    conversation = Conversation(template, [{"role": "user", "content": "What is 12 * 34?"}])
    prompt = conversation.prompt_ids()
    streamed: list[int] = []
    killed_at = 0

    def kill_first(chunk: Sampled) -> None:
        nonlocal killed_at
        streamed.extend(chunk.token_ids)
        if len(streamed) >= KILLED_AT and not killed_at:
            first.process.send_signal(signal.SIGKILL)
            killed_at = len(streamed)

    async with (
        aiohttp.ClientSession() as http,
        endpoint("first", first.socket, most=KILLED_AT) as one,  # the engine may have written the whole answer before
        endpoint("second", second.socket) as two,
    ):
        client = TokenClient(http)
        sampling, undisturbed = await long_answer(client, two, prompt, template.stop_ids)

        async def checkout(current: Endpoint, failed: str, again: bool) -> Endpoint:
            return two if failed == "first" else current

        policy = FailoverPolicy(client, one, template.stop_ids, checkout, wait_seconds=9)
        sampled = await policy.sample(prompt, sampling, MAX_TOKENS, on_progress=kill_first)
    assert first.process.wait(60) == -signal.SIGKILL
    assert sampled.token_ids == streamed
    moved = sampled.weights_versions.index("weights of second")
    assert killed_at <= moved < len(streamed)
    assert sampled.weights_versions == ["weights of first"] * moved + ["weights of second"] * (len(streamed) - moved)
    assert sampled.logprobs == pytest.approx(sampled_logprobs(model_dir, prompt, sampled.token_ids), abs=0.02)
    # the embedded engine goes on with the very draws that the first would have made
    assert sampled.token_ids == undisturbed.token_ids
    first_three, expected = ([lp for top in one.likeliest for _, lp in top] for one in (sampled, undisturbed))
    assert len(first_three) == 3 * len(streamed)
    assert first_three == pytest.approx(expected, abs=0.02)
    conversation.add_sampled(sampled.token_ids, sampled.logprobs, sampled.weights_versions, sampled.finish_reason)
    (segment,) = conversation.segments()
    assert segment.token_ids == [*prompt, *streamed]


async def test_a_stop_text_ends_a_turn_of_the_embedded_engine(start_engine: Any, model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    prompt = Conversation(template, [{"role": "user", "content": "What is 12 * 34?"}]).prompt_ids()
    sampling = Sampling(seed=1, temperature=9.0)
    async with aiohttp.ClientSession() as http, endpoint("one", start_engine().socket) as one:
        client = TokenClient(http)
        free = (await client.complete(one, prompt, sampling, 40, [])).token_ids
        stop = template.decode(free[8:10])
        asked = evolve(sampling, stop=[stop])
        ended = await client.complete(one, prompt, asked, 40, template.stop_ids)
    assert (ended.token_ids, ended.finish_reason) == (free[:10], "stop")


async def test_a_constrained_turn_begins_again_at_the_other_engine(start_engine: Any, model_dir: Path) -> None:
    """An engine applies a grammar from the end of the prompt on, so it could not go on in the middle of a form."""
    first, second = start_engine(), start_engine()
    template = ChatTemplate.load(model_dir)
    prompt = Conversation(template, [{"role": "user", "content": "What is 12 * 34?"}]).prompt_ids()
    sampling = Constraint("regex", "([a-z]{2}-){60}end").applied_to(Sampling(seed=1, temperature=1.6))
    streamed: list[int] = []

    def kill_first(chunk: Sampled) -> None:
        streamed.extend(chunk.token_ids)
        if first.process.poll() is None and len(streamed) >= KILLED_AT:
            first.process.send_signal(signal.SIGKILL)

    async with (
        aiohttp.ClientSession() as http,
        endpoint("first", first.socket, most=KILLED_AT) as one,
        endpoint("second", second.socket) as two,
    ):

        async def checkout(current: Endpoint, failed: str, again: bool) -> Endpoint:
            return two if failed == "first" else current

        client = TokenClient(http)
        policy = FailoverPolicy(client, one, template.stop_ids, checkout, wait_seconds=9)
        sampled = await policy.sample(prompt, sampling, MAX_TOKENS, on_progress=kill_first)
        undisturbed = await client.complete(two, prompt, sampling, MAX_TOKENS, template.stop_ids)
    assert sampled.token_ids == undisturbed.token_ids
    assert re.fullmatch("([a-z]{2}-){60}end", template.decode(sampled.token_ids[:-1]))
    assert set(sampled.weights_versions) == {"weights of second"}
    assert len(streamed) > len(sampled.token_ids)
    exact = sampled_logprobs(model_dir, prompt, sampled.token_ids)
    assert sampled.logprobs == pytest.approx(exact, abs=2e-3)
