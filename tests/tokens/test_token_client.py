"""What the client makes of endpoints that misbehave: a scripted server stands for a foreign one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollyard.errors import ContextExceeded, EndpointLost, EndpointRefused, RollyardError
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.wire import Endpoint
from rollyard.tokens.client import Patience, TokenClient, seed_after
from rollyard.tokens.sampled import Sampled, StreamLost

TOKEN = "tok-5f0c1e"
PROMPT = [1, 2, 3]
Answer = Callable[["Server", web.Request, web.StreamResponse], Awaitable[None]]


class Server:
    """Answers each request with the next of its scripts and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.scripts: list[Answer | tuple[int, str]] = []
        self.asked: list[dict[str, Any]] = []
        self.peers: set[Any] = set()
        self.released = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append({**await request.json(), "authorization": request.headers.get("Authorization")})
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        script = self.scripts.pop(0)
        if isinstance(script, tuple):
            return web.Response(status=script[0], text=script[1])
        response = web.StreamResponse()
        await response.prepare(request)
        await script(self, request, response)
        return response


def chunk(ids: list[int], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    return {"choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": finish_reason, **more}]}


def stream(*events: Any, then: str = "done") -> Answer:
    async def answer(server: Server, request: web.Request, response: web.StreamResponse) -> None:
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        if then == "die" and request.transport is not None:
            request.transport.close()
        elif then == "hang":
            await server.released.wait()
        elif then == "done":
            await response.write(b"data: [DONE]\n\n")

    return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    scripted = Server()
    app = web.Application()
    app.router.add_post("/v1/completions", scripted.handle)
    async with TestServer(app) as running:
        scripted.url = str(running.make_url("/"))
        yield scripted
        scripted.released.set()


@pytest.fixture
def endpoint(server: Any) -> Endpoint:
    return Endpoint(id="one", url=server.url, token=TOKEN, model="policy", weights_version="v1", tokenizer="")


@pytest.fixture
async def client() -> AsyncIterator[TokenClient]:
    async with aiohttp.ClientSession() as http:
        yield TokenClient(http, Patience(connect=5, first_token=5, next_token=5))


async def failure(client: TokenClient, endpoint: Endpoint, kind: type[RollyardError]) -> Any:
    with pytest.raises(kind) as caught:
        await client.complete(endpoint, PROMPT, Sampling(), 8, [2])
    assert TOKEN not in "".join(map(str, (caught.value, repr(caught.value), caught.value.__cause__)))
    return caught.value


async def test_ids_logprobs_and_versions_of_a_stream(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    server.scripts = [stream(chunk([5, 6]), chunk([2], "stop"), usage)]
    seen: list[int] = []
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, seed=3)
    sampled = await client.complete(endpoint, PROMPT, sampling, 8, [2], on_progress=seen.extend)
    assert sampled == Sampled([5, 6, 2], [-0.5] * 3, ["v1"] * 3, "stop")
    assert seen == [5, 6, 2]
    (asked,) = server.asked
    assert asked["authorization"] == f"Bearer {TOKEN}"
    expected = {"model": "policy", "prompt": PROMPT, "max_tokens": 8, "stop_token_ids": [2], "stream": True}
    expected |= {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "logprobs": 0, "return_token_ids": True}
    assert {key: asked[key] for key in expected} == expected


async def test_a_connection_is_used_again(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([2], "stop")) for _ in range(3)]
    for _ in range(3):
        await client.complete(endpoint, PROMPT, Sampling(), 8, [2])
    assert len(server.peers) == 1


async def test_a_first_chunk_of_any_length_is_read(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([5], prompt_token_ids=[123456] * 200_000), chunk([2], "stop"))]
    assert (await client.complete(endpoint, PROMPT, Sampling(), 8, [2])).token_ids == [5, 2]


@pytest.mark.parametrize(
    ("script", "partial"),
    [
        ((500, f"boom {TOKEN}"), []),
        ((502, "bad gateway"), []),
        ((429, "busy"), []),
        (stream(chunk([5, 6]), then="die"), [5, 6]),
        (stream(chunk([5, 6])), [5, 6]),
        (stream(chunk([5]), chunk([6], "abort")), [5, 6]),
        (stream(chunk([5]), {"error": {"message": TOKEN, "code": 500}}), [5]),
        (stream(chunk([5]), then="die"), [5]),
    ],
)
async def test_a_lost_stream_keeps_what_had_arrived(
    client: TokenClient, endpoint: Endpoint, server: Server, script: Any, partial: list[int]
) -> None:
    server.scripts = [script]
    lost = await failure(client, endpoint, StreamLost)
    assert isinstance(lost, EndpointLost)
    assert lost.partial == Sampled(partial, [-0.5] * len(partial), ["v1"] * len(partial), "abort")


@pytest.mark.parametrize(("script", "partial"), [(stream(then="hang"), []), (stream(chunk([5]), then="hang"), [5])])
async def test_silence_is_a_loss(endpoint: Endpoint, server: Server, script: Any, partial: list[int]) -> None:
    server.scripts = [script]
    async with aiohttp.ClientSession() as http:
        hasty = TokenClient(http, Patience(first_token=0.05 if not partial else 5, next_token=0.05))
        assert (await failure(hasty, endpoint, StreamLost)).partial.token_ids == partial


async def test_nobody_listening_is_a_loss(client: TokenClient, endpoint: Endpoint) -> None:
    gone = endpoint.model_copy(update={"url": "http://127.0.0.1:1"})
    assert (await failure(client, gone, StreamLost)).partial.token_ids == []


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ((401, f"who is {TOKEN}?"), "401"),
        ((404, '{"error": {"message": "The model `policy` does not exist"}}'), "does not exist"),
        ((400, "top_k must be positive"), "top_k must be positive"),
        (stream({"choices": [{"text": "hi", "finish_reason": None}]}), "return_token_ids"),
        (stream({"error": {"message": "no", "code": 400}}), "no"),
    ],
)
async def test_a_request_that_is_wrong_is_refused(
    client: TokenClient, endpoint: Endpoint, server: Server, script: Any, says: str
) -> None:
    server.scripts = [script]
    assert says in str(await failure(client, endpoint, EndpointRefused))


TOO_LONG = (400, '{"error": {"message": "This model\'s maximum context length is 4 tokens. However, ..."}}')


async def test_a_prompt_that_does_not_fit(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [TOO_LONG]
    await failure(client, endpoint, ContextExceeded)


async def test_it_goes_on_elsewhere_with_what_it_has(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([5, 6]), then="die"), (503, ""), stream(chunk([7, 8, 2], "stop"))]
    others = {"one": "two", "two": "three"}
    failed: list[str | None] = []

    async def checkout(which: str | None) -> Endpoint:
        failed.append(which)
        name = others[which] if which else "one"
        return endpoint.model_copy(update={"id": name, "weights_version": f"of {name}"})

    sampled = await client.complete_with_failover(checkout, PROMPT, Sampling(seed=9), 8, [2])
    assert sampled == Sampled([5, 6, 7, 8, 2], [-0.5] * 5, ["of one"] * 2 + ["of three"] * 3, "stop")
    assert failed == [None, "one", "two"]
    assert [asked["prompt"] for asked in server.asked] == [PROMPT, [*PROMPT, 5, 6], [*PROMPT, 5, 6]]
    assert [asked["max_tokens"] for asked in server.asked] == [8, 6, 6]
    assert [asked["seed"] for asked in server.asked] == [9, seed_after(9, 2), seed_after(9, 2)]


@pytest.mark.parametrize(
    ("scripts", "ids", "reason"),
    [
        ([stream(chunk([5, 2]), then="die")], [5, 2], "stop"),
        ([stream(chunk([5] * 8), then="die")], [5] * 8, "length"),
        ([stream(chunk([5, 2], "stop"), then="die")], [5, 2], "stop"),
        ([stream(chunk([5]), then="die"), TOO_LONG], [5], "length"),
    ],
)
async def test_a_turn_that_had_arrived_whole_is_not_asked_for_again(
    client: TokenClient, endpoint: Endpoint, server: Server, scripts: Any, ids: list[int], reason: str
) -> None:
    server.scripts = list(scripts)

    async def checkout(failed: str | None) -> Endpoint:
        return endpoint

    sampled = await client.complete_with_failover(checkout, PROMPT, Sampling(), 8, [2])
    assert (sampled.token_ids, sampled.finish_reason, server.scripts) == (ids, reason, [])


async def test_moves_are_bounded(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([5 + i]), then="die") for i in range(3)]

    async def checkout(failed: str | None) -> Endpoint:
        return endpoint

    with pytest.raises(StreamLost, match="after 2 moves") as lost:
        await client.complete_with_failover(checkout, PROMPT, Sampling(), 8, [2], max_moves=2)
    assert lost.value.partial.token_ids == [5, 6, 7]


def test_a_continued_seed_stays_in_range() -> None:
    seeds = {seed_after(seed, drawn) for seed in (-(2**63), -1, 0, 2**63 - 1) for drawn in range(100)}
    assert len(seeds) == 400
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
