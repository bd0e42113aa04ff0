"""Readers that stop reading: the server keeps little for them, ends them, and they go on where they were."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web

from rollyard.api import listener
from rollyard.api.app import build
from rollyard.api.long_responses import _LONG_LIVED
from rollyard.client.async_client import AsyncClient
from rollyard.trust.admin_kubeconfig import write_kubeconfig
from rollyard.trust.bearer_tokens import Role
from rollyard.trust.tls_contexts import client_ssl_context, server_ssl_context
from tests.server.rollouts.test_service import Yard
from tests.server.rollouts.test_service import yard as yard
from tests.support.until import until

LINES = 400_000
"""26 MB: more than the kernel and TLS hold between the server and a reader."""
READERS = 10


@dataclass
class Site:
    app: web.Application
    kubeconfig: Path
    url: str
    token: str
    tls: ssl.SSLContext
    text: bytes

    def responses(self) -> int:
        return sum(not task.done() for task in self.app[_LONG_LIVED])


@pytest_asyncio.fixture
async def site(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A server's API behind its real socket, and a job with a long output."""
    monkeypatch.setattr(listener, "READER_SECONDS", 0.5)
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
        yield Site(app, tmp_path / "admin", f"https://127.0.0.1:{port}", token, client_tls, text)


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
