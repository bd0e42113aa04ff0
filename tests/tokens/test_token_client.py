"""The client with endpoints that misbehave: a scripted server stands for a foreign one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollyard.core.errors import ContextExceeded, EndpointLost, EndpointRefused, RollyardError, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens import failover, streamed_response
from rollyard.tokens.failover import FailoverPolicy, seed_after
from rollyard.tokens.sampled_tokens import Sampled, StreamLost, TurnSampling
from rollyard.tokens.sglang import SglangChunks
from rollyard.tokens.token_client import StreamTimeouts, TokenClient
from rollyard.wire.endpoint import Endpoint
from tests.support import make

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
        for i, event in enumerate(events):
            if i == 0 and event.get("choices") and "prompt" in server.asked[-1]:
                event["choices"][0].setdefault("prompt_token_ids", server.asked[-1]["prompt"])
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        if then == "die" and request.transport is not None:
            request.transport.close()
        elif then == "hang":
            await server.released.wait()
        elif then == "speak on":
            while not server.released.is_set():
                await response.write(b': ping\n\ndata: {"choices": []}\n\n')
                await asyncio.sleep(0.01)
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
    return make.endpoint("one", server.url, token=TOKEN)


@pytest.fixture
async def client() -> AsyncIterator[TokenClient]:
    async with aiohttp.ClientSession() as http:
        yield TokenClient(http, StreamTimeouts(connect=5, first_token=5, next_token=5))


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
    sampled = await client.complete(
        endpoint, PROMPT, sampling, 8, [2], on_progress=lambda chunk: seen.extend(chunk.token_ids)
    )
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
    server.scripts = [stream(chunk([5]), chunk([2], "stop"))]
    assert (await client.complete(endpoint, [123456] * 100_000, Sampling(), 8, [2])).token_ids == [5, 2]


@pytest.mark.parametrize(
    ("script", "partial"),
    [
        ((500, f"boom {TOKEN}"), []),
        ((502, "bad gateway"), []),
        ((429, "busy"), []),
        ((401, f"who is {TOKEN}?"), []),
        ((403, "not you"), []),
        (stream(chunk([5, 6]), then="die"), [5, 6]),
        (stream(chunk([5, 6])), [5, 6]),
        (stream(chunk([5]), chunk([6], "abort")), [5, 6]),
        (stream(chunk([5]), {"error": {"message": TOKEN, "code": 500}}), [5]),
        (stream(chunk([5]), then="die"), [5]),
        (stream(chunk([5]), {"choices": [None]}), [5]),
        (stream(chunk([5]), {"choices": [{"logprobs": 3}]}), [5]),
    ],
)
async def test_a_lost_stream_keeps_what_had_arrived(
    client: TokenClient, endpoint: Endpoint, server: Server, script: Any, partial: list[int]
) -> None:
    server.scripts = [script]
    lost = await failure(client, endpoint, StreamLost)
    assert isinstance(lost, EndpointLost)
    assert lost.partial == Sampled(partial, [-0.5] * len(partial), ["v1"] * len(partial), "abort")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"error": {"message": "boom", "type": "x", "code": 500}}, "500: boom"),
        ({"error": {"message": "boom", "type": "x", "code": "503"}}, "503: boom"),
        ({"error": {"message": "boom", "code": "internal"}}, "500: boom (internal)"),
        ({"error": {"message": "boom", "code": None}}, "500: boom"),
        ({"error": "boom"}, "500: boom"),
        ({"object": "error", "message": "boom", "code": 500}, "500: boom"),
        ({"error": None, "choices": []}, "the stream ended early"),
    ],
)
async def test_an_error_in_a_stream_is_told_in_the_servers_words(
    client: TokenClient, endpoint: Endpoint, server: Server, event: dict[str, Any], says: str
) -> None:
    server.scripts = [stream(chunk([5, 6]), event)]
    lost = await failure(client, endpoint, StreamLost)
    assert (str(lost), lost.partial.token_ids) == (f"endpoint one was lost ({says})", [5, 6])


@pytest.mark.parametrize("then", ["hang", "speak on"])
@pytest.mark.parametrize(("events", "partial"), [([], []), ([chunk([5])], [5])])
async def test_silence_is_a_loss_and_so_is_speech_without_tokens(
    endpoint: Endpoint, server: Server, events: list[Any], then: str, partial: list[int]
) -> None:
    server.scripts = [stream(*events, then=then)]
    async with aiohttp.ClientSession() as http:
        hasty = TokenClient(http, StreamTimeouts(first_token=0.05 if not partial else 5, next_token=0.05))
        assert (await failure(hasty, endpoint, StreamLost)).partial.token_ids == partial


@pytest.mark.parametrize("then", ["hang", "speak on"])
async def test_a_complete_answer_is_taken_from_a_server_that_does_not_end_it(
    client: TokenClient, endpoint: Endpoint, server: Server, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_response, "END_SECONDS", 0.05)
    server.scripts = [stream(chunk([5, 2], "stop"), then=then)]
    assert (await client.complete(endpoint, PROMPT, Sampling(), 8, [2])).token_ids == [5, 2]


async def test_nobody_listening_is_a_loss(client: TokenClient, endpoint: Endpoint) -> None:
    gone = evolve(endpoint, url="http://127.0.0.1:1")
    assert (await failure(client, gone, StreamLost)).partial.token_ids == []


@pytest.mark.parametrize(
    ("script", "says"),
    [
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


TOO_LONG = (400, '{"error": {"message": "This model\'s maximum context length is 3 tokens. However, ..."}}')


async def test_a_prompt_that_does_not_fit(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [TOO_LONG]
    await failure(client, endpoint, ContextExceeded)


async def stay(current: Endpoint, failed: str, again: bool) -> Endpoint:
    return current


async def test_it_goes_on_elsewhere_with_what_it_has(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([5, 6]), then="die"), (503, ""), stream(chunk([7, 8, 2], "stop"))]
    others = {"one": "two", "two": "three"}
    failed: list[str] = []

    async def checkout(current: Endpoint, which: str, again: bool) -> Endpoint:
        failed.append(which)
        name = others[which] if which else "one"
        return evolve(endpoint, id=name, weights_version=f"of {name}")

    policy = FailoverPolicy(client, endpoint, [2], checkout, wait_seconds=9)
    sampled = await policy.sample(PROMPT, Sampling(seed=9), 8)
    assert sampled == Sampled([5, 6, 7, 8, 2], [-0.5] * 5, ["of one"] * 2 + ["of three"] * 3, "stop")
    assert failed == ["", "one", "two"]
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

    sampled = await FailoverPolicy(client, endpoint, [2], stay, wait_seconds=9).sample(PROMPT, Sampling(), 8)
    assert (sampled.token_ids, sampled.finish_reason, server.scripts) == (ids, reason, [])


async def test_moves_are_bounded(
    client: TokenClient, endpoint: Endpoint, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "MAX_MOVES", 2)
    server.scripts = [stream(chunk([5 + i]), then="die") for i in range(3)]
    with pytest.raises(StreamLost, match="after 2 moves") as lost:
        await FailoverPolicy(client, endpoint, [2], stay, wait_seconds=9).sample(PROMPT, Sampling(), 8)
    assert lost.value.partial.token_ids == [5, 6, 7]


async def test_the_only_endpoint_is_sick_and_gets_three_requests_with_pauses(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    server.scripts = [(503, "")] * 11
    policy = FailoverPolicy(client, endpoint, [2], stay, wait_seconds=9)
    async with asyncio.timeout(60) as policy.limit:
        ends_at = policy.limit.when() or 0
        with pytest.raises(StreamLost, match="3 times without a token, and no other endpoint can be used"):
            await policy.sample(PROMPT, Sampling(), 8)
        assert (policy.limit.when() or 0) >= ends_at + failover.RETRY_SECONDS * (0.25 + 0.5)
    assert len(server.asked) == 3


async def test_two_sick_endpoints_get_three_requests_each_and_a_healthy_one_goes_on(
    client: TokenClient, endpoint: Endpoint, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "RETRY_SECONDS", 0.01)
    asked: list[str] = []

    async def other(current: Endpoint, failed: str, again: bool) -> Endpoint:
        asked.append({"": "one", "one": "two", "two": "one"}[failed] if len(asked) != healthy else "three")
        return evolve(endpoint, id=asked[-1])

    healthy = -1
    server.scripts = [(503, "")] * 11
    with pytest.raises(StreamLost):
        await FailoverPolicy(client, endpoint, [2], other, wait_seconds=9).sample(PROMPT, Sampling(), 8)
    assert (asked, len(server.asked)) == (["one", "two"] * 3 + ["one"], 6)

    asked.clear()
    healthy = 6
    server.scripts = [*[(503, "")] * 6, stream(chunk([7, 2], "stop"))]
    sampled = await FailoverPolicy(client, endpoint, [2], other, wait_seconds=9).sample(PROMPT, Sampling(), 8)
    assert sampled.token_ids == [7, 2]


async def test_calls_without_an_endpoint_wait_together_and_their_time_does_not_run(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    server.scripts, asked = [stream(then="die")] * 2, list[tuple[str, bool]]()

    async def none(current: Endpoint, failed: str, again: bool) -> Endpoint:
        asked.append((failed, again))
        if failed:
            raise Unavailable("none is ready")
        return current

    policy = FailoverPolicy(client, endpoint, [2], none, wait_seconds=1.0)
    async with asyncio.timeout(60) as policy.limit:
        ends_at = policy.limit.when()
        calls = [policy.sample(PROMPT, Sampling(), 8) for _ in range(2)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert {str(error) for error in failures} == {"no endpoint for 1 s: none is ready"}
        assert ends_at is not None
        assert (policy.limit.when() or 0) >= ends_at + 1.0
    assert policy.waiting == "none is ready"
    assert asked[:4] == [("", False), ("", False), ("one", False), ("one", True)]


def test_a_continued_seed_stays_in_range() -> None:
    seeds = {seed_after(seed, drawn) for seed in (-(2**63), -1, 0, 2**63 - 1) for drawn in range(100)}
    assert len(seeds) == 400
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def logprobs(*values: Any) -> dict[str, Any]:
    return {"logprobs": {"token_logprobs": list(values)}}


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([chunk([5, 2], "stop", prompt_token_ids=[1, 2])], "another prompt"),
        ([chunk([5, 2], "stop", prompt_token_ids=[0, 1, 2, 3])], "another prompt"),
        ([chunk([5, 2], "stop", prompt_token_ids=None)], "did not return the prompt's ids"),
        ([chunk([5], **logprobs(float("nan")))], "nan"),
        ([chunk([5], **logprobs(float("-inf")))], "-inf"),
        ([chunk([5], **logprobs(-9999.0))], "-9999.0"),
        ([chunk([5], **logprobs(0.5))], "0.5"),
        ([chunk([5], **logprobs(None))], "None"),
        ([chunk([5, 6], **logprobs(-0.5))], "token ids with their logprobs"),
        ([chunk([5] * 9, "length")], "more than the 8"),
        ([chunk([5, 6], "stop")], "token 6, which does not end a turn"),
        ([chunk([5, 6], "stop", stop_reason=7)], "token 6, which does not end a turn"),
        ([chunk([], "stop")], "without a token"),
        ([{"choices": chunk([5])["choices"] * 3}], "several answers"),
        ([chunk([5]), {"choices": [{**chunk([6], "stop")["choices"][0], "index": 1}]}], "several answers"),
    ],
)
async def test_an_answer_that_cannot_be_trained_on_is_refused(
    client: TokenClient, endpoint: Endpoint, server: Server, events: Any, says: str
) -> None:
    server.scripts = [stream(*events)]
    assert says in str(await failure(client, endpoint, EndpointRefused))


async def test_a_turn_may_end_by_a_text_or_by_a_token_of_the_request(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    server.scripts = [stream(chunk([5, 6], "stop", stop_reason="END")), stream(chunk([5, 7], "stop", stop_reason=7))]
    for sampling in (Sampling(stop=["END"]), Sampling(stop_token_ids=[7])):
        assert (await client.complete(endpoint, PROMPT, sampling, 8, [2])).finish_reason == "stop"
    assert server.asked[0]["stop"] == ["END"]
    assert server.asked[1]["stop_token_ids"] == [2, 7]


@pytest.mark.parametrize(
    "script",
    [
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
        (400, "the request exceeds the available context size, try increasing it"),
        (400, '{"error": {"message": "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"}}'),
        stream({"error": {"message": "This model's maximum context length is 2 tokens.", "code": 400}}),
        stream({"error": {"message": "Too many tokens.", "code": "context_length_exceeded"}}),
        stream(chunk([], {"type": "abort", "message": "longer than the model's context length (4096 tokens)"})),
        stream(chunk([], "length")),
    ],
)
async def test_no_room_left_is_no_fault_of_the_endpoint(
    client: TokenClient, endpoint: Endpoint, server: Server, script: Any
) -> None:
    server.scripts = [script, script]  # the second: asked for less, where the engine says how much it takes
    await failure(client, endpoint, ContextExceeded)


async def test_less_is_asked_for_where_the_engine_wants_room_for_all_of_it(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    words = "This model's maximum context length is 5 tokens. However, you requested 11 tokens (3 in the prompt, 8 ...)"
    server.scripts = [(400, json.dumps({"error": {"message": words}})), stream(chunk([5, 6], "length"))]
    assert (await client.complete(endpoint, PROMPT, Sampling(), 8, [2])).token_ids == [5, 6]
    assert [asked["max_tokens"] for asked in server.asked] == [8, 2]


async def test_the_least_tokens_are_lowered_with_the_room(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    words = "This model's maximum context length is 5 tokens. However, you requested 11 tokens (3 in the prompt, 8 ...)"
    server.scripts = [(400, json.dumps({"error": {"message": words}})), stream(chunk([5, 6], "length"))]
    assert (await client.complete(endpoint, PROMPT, Sampling(min_tokens=4), 8, [2])).token_ids == [5, 6]
    assert [(asked["min_tokens"], asked["max_tokens"]) for asked in server.asked] == [(4, 8), (2, 2)]


async def test_tokens_carry_the_weights_that_the_stream_names(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    def weights(version: str) -> dict[str, str]:
        return {"object": "rollyard.weights", "weights_version": version}

    first = chunk([5], prompt_token_ids=PROMPT)
    server.scripts = [stream(weights("v7"), first, chunk([6]), weights("v8"), chunk([7, 2], "stop"))]
    sampled = await client.complete(endpoint, PROMPT, Sampling(), 8, [2])
    assert sampled.weights_versions == ["v7", "v7", "v8", "v8"]


WHOLE = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 4,
    "min_tokens": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5},
    "allowed_token_ids": [2, 5],
    "bad_words": ["no"],
    "stop": ["END"],
}


async def test_sampling_passes_through_whole(client: TokenClient, endpoint: Endpoint, server: Server) -> None:
    server.scripts = [stream(chunk([5, 2], "stop")), stream(chunk([2], "stop"))]
    extra = {"spaces_between_special_tokens": False, "vllm_xargs": {"a": 1}}
    await client.complete(endpoint, PROMPT, Sampling.model_validate({**WHOLE, "extra": extra}), 8, [2])
    await client.complete(endpoint, PROMPT, Sampling(), 8, [2])
    whole, plain = server.asked
    ours = {
        "model",
        "prompt",
        "stream",
        "return_token_ids",
        "max_tokens",
        "stop_token_ids",
        "logprobs",
        "authorization",
    }
    assert {key: value for key, value in whole.items() if key not in ours} == {**WHOLE, **extra}
    assert plain.keys() - ours == {"temperature", "top_p"}


async def test_the_other_logprobs_are_refused_before_anything_is_asked(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    with pytest.raises(EndpointRefused, match=r"returns raw logprobs.*`logprobsMode: processed`"):
        await client.complete(endpoint, PROMPT, Sampling(logprobs="processed"), 8, [2])
    server.scripts = [stream(chunk([2], "stop"))]
    processed = evolve(endpoint, logprobs="processed")
    assert (await client.complete(processed, PROMPT, Sampling(logprobs="processed"), 8, [2])).token_ids == [2]


# servers that others run


def generated(ids: list[int], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of vLLM's /inference/v1/generate."""
    content = [{"token_id": token, "logprob": -0.5, "rank": None, "top_logprobs": []} for token in ids]
    return {"choices": [{"token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish_reason, **more}]}


@pytest.fixture
async def foreign() -> AsyncIterator[tuple[Server, Endpoint]]:
    scripted = Server()

    async def generate(request: web.Request) -> web.StreamResponse:
        if "token_ids" not in await request.json():
            return web.json_response({"error": {"message": "token_ids: Field required", "code": 400}}, status=400)
        return await scripted.handle(request)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 8}]})

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as running:
        url = str(running.make_url("/"))
        yield scripted, make.endpoint("x", url, version="external", ca=False)
        scripted.released.set()


async def test_generate_is_asked_of_a_server_of_others_that_has_it(
    client: TokenClient, foreign: tuple[Server, Endpoint]
) -> None:
    server, endpoint = foreign
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "step-2", "start": 1, "end": 3}]
    first = {**generated([5]), "prompt_token_ids": PROMPT}
    server.scripts = [stream(first, generated([6, 2], "stop", weight_versions=spans))]
    sampled = await client.complete(endpoint, PROMPT, Sampling(min_p=0.5), 100, [2])
    assert sampled == Sampled([5, 6, 2], [-0.5] * 3, ["external", "step-2", "step-2"], "stop")
    (asked,) = server.asked
    assert (asked["token_ids"], asked["stream"], asked["return_token_ids"]) == (PROMPT, True, True)
    parameters = asked["sampling_params"]
    # it does not end where the context does: no more is asked for than fits
    assert (parameters["max_tokens"], parameters["min_p"], parameters["stop_token_ids"]) == (5, 0.5, [2])
    with pytest.raises(ContextExceeded):
        await client.complete(endpoint, list(range(8)), Sampling(), 100, [2])


@pytest.mark.parametrize(
    "event",
    [
        {**generated([5, 2], "stop", logprobs={"content": [{"token_id": 9, "logprob": -1.0}] * 2})},
        {**generated([5, 2], "stop", weight_versions=[{"version": "a", "start": 0, "end": 1}])},
    ],
)
async def test_generate_is_checked_too(client: TokenClient, foreign: tuple[Server, Endpoint], event: Any) -> None:
    server, endpoint = foreign
    server.scripts = [stream({**event, "prompt_token_ids": PROMPT})]
    with pytest.raises(EndpointRefused):
        await client.complete(endpoint, PROMPT, Sampling(), 8, [2])
    assert len(server.asked) == 1


async def test_a_server_of_others_without_generate_is_asked_for_completions(
    client: TokenClient, endpoint: Endpoint, server: Server
) -> None:
    server.scripts = [stream(chunk([2], "stop"))]
    foreign = evolve(endpoint, ca=False)
    assert (await client.complete(foreign, PROMPT, Sampling(), 8, [2])).weights_versions == ["v1"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"min_tokens": 9, "max_tokens": 8}, "at most `max_tokens`"),
        ({"extra": {"min_p": 0.1}}, "set `min_p` as a field of its own"),
        ({"extra": {"n": 2}}, "cannot hold `n`"),
        ({"logit_bias": {"5": 101}}, "less than or equal to 100"),
        ({"temperature": float("inf")}, "finite number"),
        ({"min_q": 1}, "min_q"),
    ],
)
def test_sampling_that_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Sampling.model_validate(fields)


async def test_the_likeliest_tokens_come_as_ids_from_each_dialect(
    client: TokenClient, endpoint: Endpoint, server: Server, foreign: tuple[Server, Endpoint]
) -> None:
    """The sampled token may be one more than the likeliest, and the order is the engine's."""
    asked = TurnSampling(top_logprobs=2)
    tops = [{"token_id:5": -3.0, "token_id:6": -0.1, "token_id:7": -1.0}, {"token_id:2": -0.5, "token_id:9": -9999.0}]
    server.scripts = [stream(chunk([5, 2], "stop", logprobs={"token_logprobs": [-3.0, -0.5], "top_logprobs": tops}))]
    expected = [((6, -0.1), (7, -1.0)), ((2, -0.5), (9, -9999.0))]
    assert (await client.complete(endpoint, PROMPT, asked, 8, [2])).likeliest == expected
    assert (server.asked[0]["logprobs"], server.asked[0]["return_tokens_as_token_ids"]) == (2, True)
    others, generating = foreign
    content = [
        {"token_id": token, "logprob": logprob, "top_logprobs": [{"token_id": t, "logprob": lp} for t, lp in likely]}
        for token, logprob, likely in ((5, -3.0, [(5, -3.0), (6, -0.1), (7, -1.0)]), (2, -0.5, expected[1]))
    ]
    others.scripts = [stream({**generated([5, 2], "stop", logprobs={"content": content}), "prompt_token_ids": PROMPT})]
    assert (await client.complete(generating, PROMPT, asked, 8, [2])).likeliest == expected
    assert others.asked[0]["sampling_params"]["logprobs"] == 3


@pytest.mark.parametrize("tops", [None, [{"a": -0.5}], [], [{"token_id:x": -0.5}], [None]])
async def test_a_server_that_does_not_name_them_by_id_is_refused(
    client: TokenClient, endpoint: Endpoint, server: Server, tops: Any
) -> None:
    server.scripts = [stream(chunk([2], "stop", logprobs={"token_logprobs": [-0.5], "top_logprobs": tops}))] * 2
    with pytest.raises(EndpointRefused, match="leave out `top_logprobs`"):
        await client.complete(endpoint, PROMPT, TurnSampling(top_logprobs=1), 8, [2])
    assert (await client.complete(endpoint, PROMPT, TurnSampling(), 8, [2])).likeliest == []


def test_sglangs_likeliest_tokens_are_read_from_all_tokens_or_the_new_ones() -> None:
    tokens, tops = [[-0.5, 5, None], [-0.1, 6, None]], [[[-0.5, 5, None]], [[-0.1, 6, None], [-2.0, 7, None]]]
    for all_tokens in (True, False):
        chunks = SglangChunks()
        found = []
        for end in (1, 2):
            start = 0 if all_tokens else end - 1
            meta = {"output_token_logprobs": tokens[start:end], "output_top_logprobs": tops[start:end]}
            event = chunks.read({"meta_info": {**meta, "completion_tokens": end}})
            found += event["choices"][0]["logprobs"]["top_logprobs"]
        assert found == [{"token_id:5": -0.5}, {"token_id:6": -0.1, "token_id:7": -2.0}]
