"""The reverse proxy in front of an engine: requests that pass, requests that are refused, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from rollyard.core.tls_server import stop_tls_server
from rollyard.engine.process import engine_supervisor
from rollyard.engine.process.child_process import EngineCommand
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.proxy import reverse_proxy as module
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.proxy.weights_transfer import ROUTES
from tests.support.until import until
from tests.support.weights_yard import TOKEN, certified

WAIT_SECONDS = 60.0
__all__ = ["certified"]  # a fixture
COMPLETION = {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 24, "seed": 1, "return_token_ids": True}


class Open:
    """A serving proxy, and a client that trusts it and sends its token."""

    def __init__(self, proxy: EngineProxy, url: str, client: aiohttp.ClientSession) -> None:
        self.proxy = proxy
        self.url = url
        self.client = client


async def nothing() -> EngineCommand:
    return EngineCommand([])


@contextlib.asynccontextmanager
async def opened(uds: Path, certified: tuple[ssl.SSLContext, ssl.SSLContext]) -> AsyncIterator[Open]:
    server_tls, client_tls = certified
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    connector = aiohttp.TCPConnector(ssl=client_tls)
    async with (
        Supervisor(nothing, uds).session() as engine,
        aiohttp.ClientSession(url, connector=connector, headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        proxy = EngineProxy(engine, TOKEN)
        runner = await proxy.open(listener, server_tls)
        try:
            yield Open(proxy, url, client)
        finally:
            await stop_tls_server(runner)


@pytest.fixture
async def real(start_engine: Any, certified: tuple[ssl.SSLContext, ssl.SSLContext]) -> AsyncIterator[Open]:
    """A proxy in front of the embedded engine."""
    async with opened(start_engine().socket, certified) as found:
        yield found


class Upstream:
    """An engine of someone else's, which has more paths than the proxy passes on."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.gone = asyncio.Event()
        self.once = False
        """Close a connection at its second request, like a server that ends an idle connection at this moment."""
        self.app = web.Application(client_max_size=8 << 20)
        self.app.router.add_route("*", "/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        again = any(r.protocol is request.protocol for r in self.seen)
        self.seen.append(request)
        if self.once and again:
            request.protocol.force_close()
        if request.path == "/metrics":
            packed = gzip.compress(b"vllm:num_requests_running 3\n")
            return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Connection": "X-Hop", "X-Hop": "1"})
        if request.path == "/v1/models":
            return web.json_response({"query": request.query_string, "headers": dict(request.headers)})
        if request.path == "/health":
            return web.Response()
        if request.path == "/inference/v1/generate":
            return web.Response(body=await request.read(), status=418)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} if request.query.get("sse") else {})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        if request.query.get("break"):
            assert request.transport is not None
            request.transport.abort()
            return response
        try:
            await asyncio.sleep(WAIT_SECONDS)
        finally:
            self.gone.set()
        return response


@pytest.fixture
async def upstream(
    tmp_path: Path, certified: tuple[ssl.SSLContext, ssl.SSLContext]
) -> AsyncIterator[tuple[Upstream, Open]]:
    engine = Upstream()
    runner = web.AppRunner(engine.app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, tmp_path / "e").start()
    try:
        async with opened(tmp_path / "e", certified) as found:
            yield engine, found
    finally:
        await runner.cleanup()


# what gets through


async def test_tokens_come_through_as_the_engine_made_them(real: Open, start_engine: Any) -> None:
    async with real.client.post("/v1/completions", json=COMPLETION) as answer:
        through = (await answer.json())["choices"][0]["token_ids"]
    async with start_engine().session() as direct, direct.post("/v1/completions", json=COMPLETION) as answer:
        assert (await answer.json())["choices"][0]["token_ids"] == through
    assert through


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
async def test_an_engine_can_be_looked_at(real: Open, path: str) -> None:
    async with real.client.get(path) as answer:
        assert answer.status == 200


async def test_an_answer_streams_and_a_client_that_goes_takes_its_request_with_it(
    upstream: tuple[Upstream, Open],
) -> None:
    engine, found = upstream
    async with found.client.post("/v1/completions", json={}) as answer:
        assert await answer.content.readline() == b"data: 1\n"  # the engine is far from done
        assert not found.proxy.idle.is_set()
    await asyncio.wait_for(engine.gone.wait(), WAIT_SECONDS)
    await asyncio.wait_for(found.proxy.idle.wait(), WAIT_SECONDS)


async def test_status_body_and_query_pass_as_they_are(upstream: tuple[Upstream, Open]) -> None:
    _, found = upstream
    body = bytes(range(256)) * 5000
    async with found.client.post("/inference/v1/generate", data=BytesIO(body)) as answer:
        assert (answer.status, await answer.read()) == (418, body)
    packed, sent = gzip.compress(body), {"Content-Encoding": "gzip"}
    async with found.client.post("/inference/v1/generate", data=packed, headers=sent) as answer:
        assert await answer.read() == body  # the engine unpacked what was still packed
    async with found.client.get("/v1/models", params={"a": "1 &2"}) as answer:
        assert (await answer.json())["query"] == "a=1 %262"


async def test_a_compressed_answer_arrives_whole(upstream: tuple[Upstream, Open]) -> None:
    _, found = upstream
    async with found.client.get("/metrics") as answer:
        assert await answer.text() == "vllm:num_requests_running 3\n"


async def test_headers_of_one_connection_stay_on_it(upstream: tuple[Upstream, Open]) -> None:
    engine, found = upstream
    async with found.client.get("/metrics", headers={"Connection": "X-Mine", "X-Mine": "1", "X-Kept": "1"}) as answer:
        assert "X-Hop" not in answer.headers
    headers = engine.seen[0].headers
    assert headers["X-Kept"] == "1"
    assert not {"X-Mine", "Authorization"} & set(headers)


# what does not


async def test_an_earlier_token_is_refused_once_the_server_names_it_no_longer(
    upstream: tuple[Upstream, Open],
) -> None:
    _, found = upstream

    async def accepted(token: str) -> bool:
        async with found.client.get("/health", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status in (200, 401)
            return answer.status == 200

    assert [await accepted(token) for token in (TOKEN, "new")] == [True, False]
    for tokens, expected in (
        (["new", TOKEN], [True, True]),
        (["new"], [False, True]),
        (["newer"], [False, False]),
    ):
        found.proxy.set_tokens(tokens)
        assert found.proxy.token == tokens[0]
        assert [await accepted(token) for token in (TOKEN, "new")] == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/metrics", "/pause", "/"])
@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", TOKEN, "Bearer \xff\xfe"])
async def test_nothing_is_read_without_the_token(upstream: tuple[Upstream, Open], path: str, token: str | None) -> None:
    engine, found = upstream
    headers = {} if token is None else {"Authorization": token}
    connector = aiohttp.TCPConnector(ssl=found.client.connector._ssl)  # type: ignore[union-attr]
    async with (
        aiohttp.ClientSession(found.url, connector=connector) as stranger,
        stranger.post(path, data=b"x" * 100, headers=headers) as answer,
    ):
        assert answer.status == 401
    assert engine.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/pause"),
        ("POST", "/collective_rpc"),
        ("POST", "/control/pause"),
        ("POST", "/control/load"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/update_weights"),
        ("POST", "/start_draft_weight_update"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("GET", "/v1/completions"),
        ("POST", "/health"),
        ("GET", "/health/"),
        ("GET", "/health/../pause"),
        ("GET", "/health%2f..%2fpause"),
    ],
)
async def test_only_a_short_list_of_paths_is_open(upstream: tuple[Upstream, Open], method: str, path: str) -> None:
    engine, found = upstream
    async with found.client.request(method, path) as answer:
        assert answer.status == 404
    assert engine.seen == []


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES))
async def test_the_way_for_transfers_is_shut_while_no_order_waits_for_one(
    upstream: tuple[Upstream, Open], method: str, path: str
) -> None:
    engine, found = upstream
    async with found.client.request(method, path) as answer:
        assert answer.status == 409
    assert engine.seen == []


async def test_another_spelling_of_an_open_path_is_that_path(upstream: tuple[Upstream, Open]) -> None:
    engine, found = upstream
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        int(found.url.rpartition(":")[2]),
        ssl=found.client.connector._ssl,  # type: ignore[union-attr]
    )
    writer.write(f"GET /v1%2Fmodels HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    status = await asyncio.wait_for(reader.readline(), WAIT_SECONDS)
    writer.close()
    await writer.wait_closed()
    assert status.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))
    assert {request.raw_path for request in engine.seen} <= {"/v1/models"}


async def test_a_body_beyond_the_limit_is_refused(
    upstream: tuple[Upstream, Open], monkeypatch: pytest.MonkeyPatch, certified: Any, tmp_path: Path
) -> None:
    engine, _ = upstream
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 1000)
    async with (
        opened(tmp_path / "e", certified) as found,
        found.client.post("/v1/completions", data=b"x" * 1001) as answer,
    ):
        assert answer.status == 413
    assert engine.seen == []


async def test_it_speaks_tls_alone(real: Open) -> None:
    async with aiohttp.ClientSession() as plain:
        with pytest.raises(aiohttp.ClientError):
            await plain.get(real.url.replace("https", "http") + "/health")


# how it ends


async def test_a_connection_that_was_idle_is_not_used_again(
    upstream: tuple[Upstream, Open], tmp_path: Path, certified: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = upstream
    engine.once = True
    monkeypatch.setattr(engine_supervisor, "IDLE_SECONDS", 0.0)
    async with opened(tmp_path / "e", certified) as found:
        for _ in range(3):
            async with found.client.post("/inference/v1/generate", json={}) as answer:
                assert answer.status == 418


async def test_an_engine_that_is_not_there_is_a_502(certified: Any, tmp_path: Path) -> None:
    async with opened(tmp_path / "nobody", certified) as found, found.client.get("/health") as answer:
        assert answer.status == 502
        assert "does not answer" in (await answer.json())["error"]["message"]
        assert found.proxy.idle.is_set()


async def test_an_answer_that_breaks_off_never_looks_complete(upstream: tuple[Upstream, Open]) -> None:
    _, found = upstream
    with pytest.raises(aiohttp.ClientError):
        async with found.client.post("/v1/completions?break=1", json={}) as answer:
            await answer.read()
    await until(found.proxy.idle.is_set)


# while the weights are changed


async def test_a_request_waits_for_the_engine_and_is_refused_when_that_takes_too_long(
    upstream: tuple[Upstream, Open],
) -> None:
    engine, found = upstream
    relay = found.proxy.epochs
    relay.close_entry(0.0)
    async with found.client.post("/v1/completions", json={}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert engine.seen == []
    async with found.client.get("/v1/models") as answer:
        assert answer.status == 200, "it can be looked at all the same"
    relay.close_entry(WAIT_SECONDS)
    waiting = asyncio.create_task(ask(found, b"late"))
    await until(lambda: not found.proxy.idle.is_set())
    relay.begin_epoch("v2", {})
    relay.judge_epoch(proven=True)
    relay.open_entry()
    assert await waiting == (b"late", "v2")


async def ask(found: Open, body: bytes) -> tuple[bytes, str | None]:
    async with found.client.post("/inference/v1/generate", data=body) as answer:
        return await answer.read(), answer.headers.get("X-Rollyard-Weights-Version")


async def test_what_new_weights_made_is_kept_back_until_they_are_proven(upstream: tuple[Upstream, Open]) -> None:
    _, found = upstream
    relay = found.proxy.epochs
    relay.begin_epoch("v2", {})
    waiting = asyncio.create_task(ask(found, b"first"))
    await until(lambda: relay._reads == 2)  # its head and its body
    relay.begin_epoch("v3", {})  # v2 was never proven: the question is asked anew
    await until(lambda: relay._reads == 4)
    assert not waiting.done()
    relay.judge_epoch(proven=True)
    assert await waiting == (b"first", "v3")


async def test_streams_that_are_cut_end_with_abort_after_what_was_read(upstream: tuple[Upstream, Open]) -> None:
    engine, found = upstream
    async with found.client.post("/v1/completions?sse=1", json={}) as answer:
        assert await answer.content.readline() == b"data: 1\n"
        found.proxy.epochs.truncate_all()
        rest = await answer.read()
    assert b'"finish_reason":"abort"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(engine.gone.wait(), WAIT_SECONDS)


async def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, certified: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEADER_SECONDS", 0.3)
    async with opened(tmp_path / "none", certified) as found, asyncio.timeout(WAIT_SECONDS):
        for said in (b"", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(found.url).port, ssl=certified[1])
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
