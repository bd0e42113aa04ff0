"""One rollout's policy: whatever way an endpoint fails, the turn goes on at another with the ids that it has."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollyard.kinds.base import evolve
from rollyard.kinds.engine_spec import Patience
from rollyard.kinds.rollout import Sampling
from rollyard.node.lease_sampler import LeaseSampler
from rollyard.tokens import requests_in_flight
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.files import EndpointFile
from rollyard.wire.node import LeaseRef
from simulation.serving import serve_app
from tests.support import make

QUICK = Patience(connect_seconds=1.0, first_token_seconds=1.0, idle_seconds=1.0)
REF = LeaseRef(namespace="default", id="r", fence=1)


def chunk(prompt: list[int], ids: list[int], finish: str | None = None) -> bytes:
    choice: dict[str, Any] = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
    choice |= {"prompt_token_ids": prompt, "finish_reason": finish, "stop_reason": ids[-1] if finish else None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def engine(way: str, prompts: list[list[int]]) -> web.Application:
    """A model server that counts up from the length of its prompt, and fails in its way."""

    async def complete(request: web.Request) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        prompts.append(prompt)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if way == "silent":
            await asyncio.sleep(30)
        await answer.prepare(request)
        first = len(prompt)
        if way == "mute":
            await asyncio.sleep(30)
        await answer.write(chunk(prompt, [first, first + 1]))
        if way == "idle":
            await asyncio.sleep(30)
        for more in range(20) if way == "slow" else ():
            await asyncio.sleep(0.02)
            await answer.write(chunk(prompt, [more]))
        if way == "broken":
            assert request.transport is not None
            request.transport.abort()
            return answer
        await answer.write(chunk(prompt, [first + 2], "stop") + b"data: [DONE]\n\n")
        return answer

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    return app


class Yard:
    """Rollyard's server as a policy knows it: one route, which hands out what a test says."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.next: list[Endpoint] = []

    def app(self) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            self.asked.append(await request.json())
            if not self.next:
                body = {"kind": "Status", "reason": "ServiceUnavailable", "code": 503, "message": "none is ready"}
                return web.json_response(body, status=503)
            return web.json_response(self.next.pop(0).model_dump())

        app = web.Application()
        app.add_routes([web.post("/v1/node/endpoint", answer)])
        return app


@contextlib.asynccontextmanager
async def policy(yard: Yard, first: Endpoint, folder: Path) -> AsyncIterator[LeaseSampler]:
    async with serve_app(yard.app()) as url, aiohttp.ClientSession() as http:
        (folder / "endpoint.json").write_text(EndpointFile(url=url, epoch=1).model_dump_json())
        link = make.server_link(folder / "endpoint.json")
        yield LeaseSampler(link, http, TokenClient(http), REF, first, [], None)


def endpoint(name: str, url: str, patience: Patience | None = None) -> Endpoint:
    return make.endpoint(name, url, version=name, patience=patience or Patience())


@pytest.mark.parametrize(("way", "streamed"), [("silent", 0), ("mute", 0), ("idle", 2), ("broken", 2), ("refused", 0)])
async def test_a_turn_goes_on_elsewhere_with_the_ids_it_has(tmp_path: Path, way: str, streamed: int) -> None:
    yard, bad, good = Yard(), list[list[int]](), list[list[int]]()
    async with serve_app(engine(way, bad)) as one, serve_app(engine("well", good)) as two:
        first = endpoint("first", "http://127.0.0.1:9" if way == "refused" else one, QUICK)
        yard.next = [endpoint("second", two)]
        async with policy(yard, first, tmp_path) as leased:
            sampled = await leased.sample([10, 11, 12], Sampling(max_tokens=50))
    assert good == [[10, 11, 12, *range(3, 3 + streamed)]]
    assert sampled.token_ids == list(range(3, 6 + streamed))
    assert sampled.weights_versions == ["first"] * streamed + ["second"] * 3
    assert [a["failed"] for a in yard.asked] == ["first"]
    assert leased.failover.endpoint.id == "second"


async def test_a_failure_is_a_complaint_once_however_often_it_asks(tmp_path: Path) -> None:
    yard, good = Yard(), list[list[int]]()
    async with (
        serve_app(engine("well", good)) as url,
        policy(yard, endpoint("first", "http://127.0.0.1:9"), tmp_path) as leased,
    ):
        turn = asyncio.create_task(leased.sample([1], Sampling(max_tokens=9)))
        async with asyncio.timeout(60):
            while len(yard.asked) < 3:
                await asyncio.sleep(0.01)
        yard.next = [endpoint("first", url)]
        await turn
    assert [a["again"] for a in yard.asked][:3] == [False, True, True]


@pytest.mark.parametrize("whole", [True, False])
async def test_sglang_is_spoken_to_in_its_own_way(tmp_path: Path, whole: bool) -> None:
    """Its events tell all tokens so far, or the new ones alone; either way none is lost or doubled."""
    asked: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        tokens = [[-0.1 * n, n, None] for n in range(1, 6)]
        for end in (2, 5):
            told = tokens[:end] if whole else tokens[{2: 0, 5: 2}[end] : end]
            reason = {"type": "stop", "matched": 5} if end == 5 else None
            meta = {
                "output_token_logprobs": told,
                "completion_tokens": end,
                "prompt_tokens": 2,
                "finish_reason": reason,
            }
            await answer.write(f"data: {json.dumps({'text': '', 'meta_info': meta})}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer

    app = web.Application()
    app.add_routes([web.post("/generate", generate)])
    async with serve_app(app) as url:
        first = evolve(endpoint("first", url), dialect="sglang", ca=False)
        async with policy(Yard(), first, tmp_path) as leased:
            sampled = await leased.sample([10, 11], Sampling(max_tokens=9, temperature=0.5))
    assert (sampled.token_ids, sampled.finish_reason) == ([1, 2, 3, 4, 5], "stop")
    assert sampled.logprobs == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5])
    assert asked[0]["input_ids"] == [10, 11]
    assert asked[0]["sampling_params"] | {"max_new_tokens": 9, "temperature": 0.5} == asked[0]["sampling_params"]


async def test_told_to_it_asks_again_once_before_its_next_turn(tmp_path: Path) -> None:
    yard, here, there = Yard(), list[list[int]](), list[list[int]]()
    async with (
        serve_app(engine("well", here)) as one,
        serve_app(engine("well", there)) as two,
        policy(yard, endpoint("first", one), tmp_path) as leased,
    ):
        await leased.sample([1], Sampling(max_tokens=9))
        leased.rechoose()
        await leased.sample([1, 2], Sampling(max_tokens=9))
        assert (len(here), leased.failover.endpoint.id) == (2, "first"), "nobody knows a better one: it stays"
        yard.next = [endpoint("second", two)]
        leased.rechoose()
        for prompt in ([1, 2, 3], [1, 2, 3, 4]):
            await leased.sample(prompt, Sampling(max_tokens=9))
    assert (len(here), there) == (2, [[1, 2, 3], [1, 2, 3, 4]])
    assert [a["failed"] for a in yard.asked] == ["", ""]


async def test_told_that_its_endpoint_is_out_it_leaves_in_the_middle_of_a_turn_that_has_fallen_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_in_flight, "QUIET_SECONDS", 0.2)
    yard, here, there = Yard(), list[list[int]](), list[list[int]]()
    async with (
        serve_app(engine("idle", here)) as one,
        serve_app(engine("well", there)) as two,
        policy(yard, endpoint("first", one), tmp_path) as leased,
    ):
        streamed = asyncio.Event()
        turn = asyncio.create_task(leased.sample([7], Sampling(max_tokens=50), lambda ids: streamed.set()))
        await streamed.wait()
        leased.rechoose(now=True)
        async with asyncio.timeout(60):
            while leased.failover._leave_task is None or not leased.failover._leave_task.done():
                await asyncio.sleep(0.01)
        assert not turn.done(), "nobody knows a better one: it waits where it is"
        yard.next = [endpoint("second", two)]
        leased.rechoose(now=True)
        async with asyncio.timeout(60):
            sampled = await turn
    assert (sampled.token_ids, sampled.weights_versions) == ([1, 2, 3, 4, 5], ["first"] * 2 + ["second"] * 3)
    assert (here, there) == ([[7]], [[7, 1, 2]])
    assert {a["failed"] for a in yard.asked} == {""}, "the server knows it, and needs no complaint"


async def test_a_turn_that_still_streams_ends_where_it_began_whatever_the_server_thinks_of_its_endpoint(
    tmp_path: Path,
) -> None:
    yard, here, there = Yard(), list[list[int]](), list[list[int]]()
    async with (
        serve_app(engine("slow", here)) as one,
        serve_app(engine("well", there)) as two,
        policy(yard, endpoint("first", one), tmp_path) as leased,
    ):
        streamed = asyncio.Event()
        turn = asyncio.create_task(leased.sample([7], Sampling(max_tokens=50), lambda ids: streamed.set()))
        await streamed.wait()
        yard.next = [endpoint("second", two)]
        leased.rechoose(now=True)
        assert set((await turn).weights_versions) == {"first"}
        await leased.sample([7, 8], Sampling(max_tokens=50))
    assert (here, there) == ([[7]], [[7, 8]])
