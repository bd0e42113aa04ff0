"""The egress proxy and hostile requests. The sandbox, and the site's proxy, are sockets of the test."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.sandbox import egress_proxy
from rollyard.sandbox.egress_proxy import MAX_CONNECTIONS, EgressProxy
from tests.support.until import until


@contextlib.asynccontextmanager
async def proxy(*hosts: str) -> AsyncIterator[tuple[EgressProxy, int]]:
    started = EgressProxy([HostPattern.parse(host) for host in hosts])
    listener = socket.create_server(("127.0.0.1", 0))
    await started.start(listener)
    try:
        yield started, listener.getsockname()[1]
    finally:
        await started.close()


@contextlib.asynccontextmanager
async def site_proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[bytes]]:
    """Yield what the site's proxy has received."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield received


async def answered(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line.strip()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET http://good.example/ HTTP/1.1\r\nX: a\n\nGET http://evil.example/ HTTP/1.1\nHost: evil.example\r\n\r\n",
        b"GET http://good.example/ HTTP/1.1\r\nX: a\rHost: evil.example\r\n\r\n",
        b"GET\nHost: http://good.example/ HTTP/1.1\r\n\r\n",
        b"G\xff http://good.example/ HTTP/1.1\r\n\r\n",
        b"GET http://good.example/\xff HTTP/1.1\r\n\r\n",
    ],
    ids=["second request", "second header", "method", "not ascii", "target"],
)
async def test_what_a_server_could_read_otherwise_is_refused(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with site_proxy(monkeypatch) as received, proxy("good.example") as (_, port):
        assert await answered(port, request_bytes) == b"HTTP/1.1 400 Bad Request"
    assert received == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_the_sites_proxy_gets_only_the_host_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site_proxy(monkeypatch) as received, proxy("good.example", "*.wild.example") as (_, port):
        await answered(port, b"CONNECT evil.example:443@good.example:443 HTTP/1.1\r\n\r\n")
        await answered(port, b"GET http://evil.example:80@good.example?x=1 HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        for host in (b"evil.example%00.wild.example", b"evil.example,.wild.example"):
            assert b"403" in await answered(port, b"CONNECT %s:443 HTTP/1.1\r\n\r\n" % host)
        await answered(port, b"CONNECT a.b.wild.example:443 HTTP/1.1\r\n\r\n")
    assert [head.splitlines()[:2] for head in received] == [
        [b"CONNECT good.example:443 HTTP/1.1", b"Host: good.example:443"],
        [b"GET http://good.example/?x=1 HTTP/1.1", b"Host: good.example"],
        [b"CONNECT a.b.wild.example:443 HTTP/1.1", b"Host: a.b.wild.example:443"],
    ]


async def test_connections_whose_answers_nobody_reads_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy keeps what the kernel has no room for. A connection counts as long as there is some of it."""
    monkeypatch.setattr(egress_proxy, "FINISH_SECONDS", 1.0)
    small = 4096

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(30_000))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        there = server.sockets[0].getsockname()[1]
        started = EgressProxy([HostPattern.parse(f"127.0.0.1:{there}")])
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, small)
        await started.start(listener)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, small)
            client.connect(listener.getsockname())
            client.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % there)
            await until(lambda: bool(started._connections))
            (task,) = started._connections
            await task
            # its end has come, although nothing was read
            client.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.to_thread(client.recv, 65536):
                    pass
        await started.close()


async def test_slow_names_hold_up_nothing_else_of_the_node_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Semaphore(0), threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        asked.release()
        answer.wait()
        return []

    async with proxy("*.wild.example") as (_, port):
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        try:
            asking = [
                asyncio.create_task(answered(port, b"CONNECT n%d.wild.example:443 HTTP/1.1\r\n\r\n" % n))
                for n in range(MAX_CONNECTIONS)
            ]
            await until(lambda: asked.acquire(blocking=False))
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(lambda: "done") == "done"
        finally:
            answer.set()
        assert set(await asyncio.gather(*asking)) == {b"HTTP/1.1 502 Bad Gateway"}
