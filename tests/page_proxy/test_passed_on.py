"""Answers that the proxy passes on: streams without delay, slow browsers, servers that end, move or send odd things."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from rollyard.api import page
from rollyard.client.kubeconfig import Context, load_context
from rollyard.page_proxy import handler
from simulation.serving import serve_app
from tests.page_proxy.conftest import RunningProxy, start
from tests.support.until import until
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")
PIECE = bytes(1 << 16)
MOST_IN_BETWEEN = 32 << 20
"""Bytes that may be on the way to a browser that reads nothing. The kernel keeps up to 10 MB for each of two connections."""


class Stream:
    """A browser's open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, proxy: RunningProxy, path: str) -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {proxy.host}\r\nCookie: {proxy.cookie}\r\n\r\n".encode())
        return cls(reader, writer)

    async def until(self, text: bytes) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.readuntil(text)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def before(folder: Path, answer: Handler) -> AsyncIterator[RunningProxy]:
    """A proxy before a server that is not Rollyard's."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_app(app))
        (folder / "endpoint.json").write_text(json.dumps({"url": url, "epoch": 1}))
        yield await start(Context(url, None, "the-token", "default", folder / "endpoint.json"), stack)


async def test_files_of_the_page_have_their_types_and_are_not_sent_again(proxy: RunningProxy) -> None:
    types = {"": "text/html", "index.html": "text/html", "main.js": "text/javascript", "style.css": "text/css"}
    for name, kind in types.items():
        head, _, body = (await proxy.read(f"/ui/{name}")).partition(b"\r\n\r\n")
        assert body == (page.FOLDER / (name or "index.html")).read_bytes()
        lines = head.decode().split("\r\n")
        assert f"Content-Type: {kind}; charset=utf-8" in lines
        assert "Cache-Control: no-cache" in lines
        (tag,) = (line[6:] for line in lines if line.lower().startswith("etag: "))
        again = await proxy.get(f"/ui/{name}", f"Cookie: {proxy.cookie}", f"If-None-Match: {tag}")
        assert again.startswith(b"HTTP/1.1 304 ")
        assert again.endswith(b"\r\n\r\n")
    for name in ("no.js", "__init__.py", ".hidden.js", "vendor", "main.js.map"):
        assert (await proxy.read(f"/ui/{name}")).startswith(b"HTTP/1.1 404")


async def test_a_stream_arrives_while_it_goes_on(proxy: RunningProxy) -> None:
    stream = await Stream.open(proxy, "/v1/rollouts/stream")
    head = await stream.until(b": rollouts\n\n")
    assert b"Content-Type: text/event-stream" in head
    await stream.close()
    pools = "/apis/rollyard.dev/v1alpha1/rolloutpools"
    watch = await Stream.open(
        proxy, f"{pools}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1"
    )
    assert b"Content-Type: application/json" in await watch.until(b'"BOOKMARK"')
    await watch.close()


async def test_a_server_that_ends_and_comes_back_elsewhere_is_found(proxy: RunningProxy, yard: Yard) -> None:
    stream = await Stream.open(proxy, "/v1/rollouts/stream")
    await stream.until(b": rollouts\n\n")
    yard.kill()
    try:
        rest = await stream.reader.read()
        assert not rest.endswith(b"0\r\n\r\n"), "a browser must see that the stream broke off"
        await stream.close()
        away = await proxy.read("/v1/endings")
        assert away.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1\r\n" in away
        assert b'"message":"the server does not answer at present (' in away
        page = await proxy.read("/ui/")
        assert page.startswith(b"HTTP/1.1 503")
        assert b'http-equiv="refresh" content="2;url=/ui/"' in page, "the browser tries again by itself"
    finally:
        yard.start_elsewhere()
    assert b'"endings"' in await proxy.read("/v1/endings")


async def test_a_browser_that_reads_nothing_stops_the_server(tmp_path: Path) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(PIECE)
            sent += len(PIECE)

    async with before(tmp_path, endless) as proxy:
        stream = await Stream.open(proxy, "/v1/endless")
        seen: list[int] = []

        def stands_still() -> bool:
            seen.append(sent)
            return len(seen) > 20 and seen[-20] == sent > 0

        await until(stands_still, every=0.02)
        assert sent < MOST_IN_BETWEEN
        await stream.close()


async def test_what_a_server_adds_does_not_reach_the_browser(tmp_path: Path) -> None:
    seen: list[web.BaseRequest] = []

    async def odd(request: web.Request) -> web.Response:
        seen.append(request)
        headers = {
            "Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*", "Content-Security-Policy": "default-src *",
            "Location": "https://evil.example/", "Refresh": "0; url=https://evil.example/", "X-Other": "the-token",
            "Cache-Control": "public", "Service-Worker-Allowed": "/",
        }  # fmt: skip
        status = 302 if request.path.endswith("redirect") else 401 if request.path.endswith("refused") else 200
        body = f"<script>alert(1)</script>{request.headers['Accept-Encoding']}"
        return web.Response(text=body, content_type="text/html", headers=headers, status=status)

    async with before(tmp_path, odd) as proxy:
        sent = (f"Cookie: {proxy.cookie}", "Authorization: Bearer x", "X-Forwarded-For: 1.2.3.4", "Accept: text/x")
        for path in ("/v1/x?a=%7B%22b%22:1%7D&c=d+e", "/v1/redirect", "/v1/refused"):
            head, _, body = (await proxy.get(path, *sent)).partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            assert b"the-token" not in head + body
            assert not [line for line in lines if "evil" in line or "ccess-Control" in line or "et-Cookie" in line]
            assert not [line for line in lines if line.startswith(("Refresh", "Service-Worker"))]
            assert [line for line in lines if line.startswith("Content-Security")] == [
                f"Content-Security-Policy: {handler.HEADERS['Content-Security-Policy']}"
            ]
            assert "Cache-Control: no-store" in lines
            assert "Content-Type: text/html" not in head.decode()
            if path == "/v1/refused":  # 401 would tell the page that the browser is not signed in
                assert lines[0] == "HTTP/1.1 503 Service Unavailable"
        first = seen[0]
        assert first.raw_path == "/v1/x?a=%7B%22b%22:1%7D&c=d+e"
        assert first.headers["Authorization"] == "Bearer the-token"
        assert first.headers["Accept"] == "text/x"
        assert not {"Cookie", "X-Forwarded-For", "Origin"} & set(first.headers)


async def test_too_many_open_streams_are_refused_until_one_ends(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MAX_OPEN", 3)
    async with AsyncExitStack() as stack:  # a proxy of its own: tabs of other tests have streams
        proxy = await start(load_context(yard.data / "admin.kubeconfig"), stack)
        streams = [await Stream.open(proxy, "/v1/rollouts/stream") for _ in range(3)]
        for stream in streams:
            await stream.until(b": rollouts\n\n")
        assert (await proxy.read("/v1/endings")).startswith(b"HTTP/1.1 429")
        await streams.pop().close()

        async def free() -> bool:
            return (await proxy.read("/v1/endings")).startswith(b"HTTP/1.1 200")

        await until(free)
        for stream in streams:
            await stream.close()


async def test_the_end_waits_for_no_open_stream(yard: Yard) -> None:
    async with AsyncExitStack() as stack:
        proxy = await start(load_context(yard.data / "admin.kubeconfig"), stack)
        stream = await Stream.open(proxy, "/v1/changes")
        await stream.until(b"\r\n\r\n")
        async with asyncio.timeout(30):
            await stack.aclose()
        await stream.close()
