"""The user of the other end of a connection within this machine, as the kernel tells it."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
from aiohttp import web

from rollyard.bridges.listener import LoopbackAddress, answer, json_object, serve
from rollyard.core.aio import running
from rollyard.core.errors import BadRequest
from rollyard.host.peer_user import PeerUsers
from tests.support.until import until

CONNECT = 'exec 3<>"/dev/tcp/$0/$1"; read -r -u 3 || true'
NOBODY = 65534


@pytest.mark.parametrize(
    ("host", "called"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::ffff:127.0.0.1"), ("::1", "::1")]
)
@pytest.mark.parametrize("user", [os.getuid(), NOBODY])
async def test_the_user_of_a_caller_is_known(host: str, called: str, user: int) -> None:
    if user != os.getuid() and os.getuid():
        pytest.skip("only root can start a process of another user")
    found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(await PeerUsers().uid(writer.transport))
        writer.close()

    async with await asyncio.start_server(connected, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        caller = subprocess.Popen(["bash", "-c", CONNECT, called, str(port)], user=user)
        assert await found == user
        assert await asyncio.to_thread(caller.wait) == 0


async def test_the_user_of_a_caller_that_closed_its_end_is_unknown() -> None:
    """The kernel gives such an end to user 0, so a bridge of root would serve everybody."""
    found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other end is closed
        found.set_result(await PeerUsers().uid(writer.transport))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.close()
        assert await found is None


@pytest.mark.parametrize("text", ["127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http"])
def test_a_port_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="ADDRESS:PORT"):
        LoopbackAddress.parse(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "10.0.0.7:80", "localhost:80", "[::]:80", "127.0.0.1"])
def test_an_address_that_others_may_reach_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"127\.0\.0\.1"):
        LoopbackAddress.parse(text)


@pytest.mark.parametrize(("text", "host"), [("127.0.0.1:80", "127.0.0.1"), ("[::1]:80", "::1"), ("80", "127.0.0.1")])
def test_addresses_of_this_machine(text: str, host: str) -> None:
    assert LoopbackAddress.parse(text) == LoopbackAddress(host, 80)


async def test_bodies_that_never_end_hold_up_nobody_and_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def post(request: web.Request) -> web.StreamResponse:
        try:
            return await answer(request, await json_object(request))
        except BadRequest as error:
            refused.append(str(error))
            return web.json_response({"detail": str(error)}, status=400)

    refused: list[str] = []
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    async with running(serve([web.post("/", post)], LoopbackAddress.parse("127.0.0.1:0"), url.set_result)):
        _, _, port = (await url).rpartition(":")
        half_open = [await asyncio.open_connection("127.0.0.1", int(port)) for _ in range(100)]
        for _, writer in half_open:
            writer.write(head % 1000 + b"{")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(head % 2 + b"{}")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, other in [*half_open, (reader, writer)]:
            other.close()
        await until(lambda: len(refused) == 100)
    assert set(refused) == {"the caller closed its connection before it had sent the body"}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
