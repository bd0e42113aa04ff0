"""Readers that stop reading: the server keeps little for them, ends them, and they go on where they were."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
import tracemalloc
from asyncio import sslproto
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import zstandard
from aiohttp import web

from rollyard.api import listener, unread_answers
from rollyard.api.app import build
from rollyard.api.costly_answers import AT_ONCE
from rollyard.api.long_responses import _LONG_LIVED
from rollyard.api.unread_answers import _UNREAD
from rollyard.client.async_client import AsyncClient
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutRecord
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from rollyard.trust.admin_kubeconfig import write_kubeconfig
from rollyard.trust.bearer_tokens import Role
from rollyard.trust.tls_contexts import client_ssl_context, server_ssl_context
from tests.server.rollouts.test_service import Yard
from tests.server.rollouts.test_service import yard as yard
from tests.support.until import until

LINES = 400_000
"""26 MB: more than the kernel and TLS hold between the server and a reader."""
READERS = 10
IDLE = 20
REQUEST = '{"pool": "swe", "task": {"kind": "math", "problem": "?", "answer": "1"}}'
LARGE, LARGE_BYTES = "large", 12 << 20
"""A rollout whose trajectory has a text of this size."""
LARGE_ANSWERS = (f"/v1/rollouts/{LARGE}", "/v1/rollouts/stream?trajectories=1")


@dataclass
class Site:
    app: web.Application
    kubeconfig: Path
    url: str
    token: str
    tls: ssl.SSLContext
    text: bytes
    yard: Yard

    @asynccontextmanager
    async def asking(self, path: str) -> AsyncIterator[ssl.SSLSocket]:
        """A connection on which this path is asked for. Nothing is read."""
        connection = await asyncio.to_thread(self._ask, path)
        with connection:
            yield connection

    def _ask(self, path: str) -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(60)
        plain.connect((urlsplit(self.url).hostname, urlsplit(self.url).port))
        connection = self.tls.wrap_socket(plain, server_hostname="127.0.0.1")
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n\r\n"
        connection.sendall(request.encode())
        return connection

    async def store_large(self) -> None:
        """Store the large rollout, which has ended."""
        ids = list(range(10))
        segment = Segment(token_ids=ids, loss_mask=[0] * 5 + [1] * 5, prompt_length=5, logprobs=[None] * 5 + [-1.0] * 5,
                          weights_version=[None] * 5 + ["v1"] * 5)  # fmt: skip
        turn = Turn(segment=0, prompt_length=5, response_length=5, text="x" * LARGE_BYTES, finish_reason="stop")
        outcome = Outcome(status=Status.COMPLETED, reward=1.0, segments=[segment], turns=[turn])
        await self.yard.parts.store.rollouts.transact(lambda tx: tx.put(
            RolloutRecord(
                namespace="default", id=LARGE, digest="d", request=REQUEST, pool="swe", task_kind="math", group=None,
                sample_index=0, mode="train", priority=0, created_at=time.time(), finished_at=time.time(), reward=1.0,
                status=Status.COMPLETED, result=tx.add_blob(zstandard.compress(encode([outcome]))),
            )
        ))  # fmt: skip

    def responses(self) -> int:
        return sum(not task.done() for task in self.app[_LONG_LIVED])


@pytest.fixture
def reader_seconds() -> float:
    return 0.5


@pytest_asyncio.fixture
async def site(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader_seconds: float
) -> AsyncIterator[Site]:
    """A server's API behind its real socket, and a job with a long output."""
    monkeypatch.setattr(listener, "READER_SECONDS", reader_seconds)
    services = yard.parts.services()
    text = b"".join(b"%063d\n" % number for number in range(LINES))
    output = services.log_file("default", "swe-0")
    output.parent.mkdir(parents=True)
    output.write_bytes(text)
    app, authority = build(services), yard.parts.authority
    token = yard.parts.signer.issue(Role.ADMIN, "admin")
    async with AsyncExitStack() as stack:
        tls = server_ssl_context(authority.server_certificate(["127.0.0.1"]))
        port = await listener.listen(app, "127.0.0.1", 0, tls, stack, stop_seconds=5)
        write_kubeconfig(tmp_path / "admin", f"https://127.0.0.1:{port}", authority.ca_pem, token)
        client_tls = client_ssl_context(authority.ca_pem)
        yield Site(app, tmp_path / "admin", f"https://127.0.0.1:{port}", token, client_tls, text, yard)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_reader_of_a_log_that_pauses_goes_on_where_it_was(site: Site, follow: bool) -> None:
    got, paused = bytearray(), False
    async with AsyncClient(kubeconfig=site.kubeconfig) as client:
        async for piece in client.log("default", "swe-0", follow=follow):
            got += piece
            if not paused:
                assert site.responses() == 1
                await until(lambda: site.responses() == 0)
                paused = True
    assert bytes(got) == site.text


async def test_readers_that_stop_cost_the_server_little_memory_and_are_ended(site: Site) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    where, port = urlsplit(site.url).hostname, urlsplit(site.url).port
    path = "/apis/rollyard.dev/v1alpha1/namespaces/default/allocations/swe-0/log"
    writers = []
    for _ in range(READERS):
        _, writer = await asyncio.open_connection(where, port, ssl=site.tls, limit=1024)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token}\r\n\r\n".encode())
        writers.append(writer)
    await until(lambda: site.responses() == READERS)
    await until(lambda: site.responses() == 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < READERS * len(site.text) / 4, "a part of what they did not read"
    for writer in writers:
        writer.transport.abort()


def rest(connection: ssl.SSLSocket) -> int:
    """Read what comes until the end; return its size."""
    size = 0
    try:
        while some := connection.recv(1 << 20):
            size += len(some)
    except (ConnectionError, ssl.SSLEOFError):
        pass
    return size


@pytest.mark.parametrize("reader_seconds", [60.0])
@pytest.mark.parametrize("path", LARGE_ANSWERS)
async def test_the_slowest_reader_of_large_answers_makes_room_for_others(
    path: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.store_large()
    unread = site.app[_UNREAD]
    monkeypatch.setattr(unread, "_most", LARGE_BYTES * 3 // 2)
    async with site.asking(path) as slow:
        await until(lambda: unread.size >= LARGE_BYTES)
        async with AsyncClient(kubeconfig=site.kubeconfig) as client:
            body = await client._http.json("GET", f"/v1/rollouts/{LARGE}")
        assert len(body["trajectory"]["turns"][0]["text"]) == LARGE_BYTES
        assert await asyncio.to_thread(rest, slow) < LARGE_BYTES
    await until(lambda: unread.size == 0)


@pytest.mark.parametrize("reader_seconds", [60.0])
@pytest.mark.parametrize("path", LARGE_ANSWERS)
async def test_a_reader_of_some_bytes_a_second_is_ended(path: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.store_large()
    monkeypatch.setattr(unread_answers, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(unread_answers, "LEAST_BYTES_A_SECOND", LARGE_BYTES)
    async with site.asking(path) as slow:

        def reads_on() -> int:
            return len(slow.recv(1))

        await until(lambda: site.app[_UNREAD].size >= LARGE_BYTES)
        while site.app[_UNREAD].size:
            await asyncio.to_thread(reads_on)
        assert await asyncio.to_thread(rest, slow) < LARGE_BYTES


@pytest.mark.parametrize("reader_seconds", [60.0])
async def test_unread_answers_hold_no_turn(site: Site) -> None:
    await site.store_large()
    async with AsyncExitStack() as stack:
        for _ in range(AT_ONCE + 1):
            await stack.enter_async_context(site.asking(LARGE_ANSWERS[0]))
        await until(lambda: site.app[_UNREAD].size >= (AT_ONCE + 1) * LARGE_BYTES)
        async with AsyncClient(kubeconfig=site.kubeconfig) as client:
            assert [view.id async for view in client.rollouts(search={"prefix": LARGE})] == [LARGE]


async def test_an_idle_connection_costs_little_memory(site: Site) -> None:
    """asyncio alone would keep 256 KiB for each."""

    def held() -> int:
        return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([only]).statistics("filename"))

    only = tracemalloc.Filter(True, sslproto.__file__)
    tracemalloc.start()
    try:
        before = held()
        async with AsyncExitStack() as stack:
            for _ in range(IDLE):
                connection = await stack.enter_async_context(site.asking("/healthz"))
                assert (await asyncio.to_thread(connection.recv, 100)).startswith(b"HTTP/1.1 200")
            assert held() - before < IDLE * (96 << 10)
    finally:
        tracemalloc.stop()
