"""The node agent's end of an attachment, against a client that breaks the rules of its windows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollyard.client.attached_socket import AttachedSocket
from rollyard.client.attachment import Attachment
from rollyard.core.errors import BadRequest, SandboxLost
from rollyard.node.attachments import _serve
from rollyard.node.kept_sandboxes import Kept
from rollyard.sandbox.program import Program, ProgramSpec
from rollyard.wire.attach import (
    CHUNK,
    MAX_MESSAGE_BYTES,
    STDIN,
    STDOUT,
    WINDOW,
    Acknowledge,
    AttachKind,
    Control,
    EndInput,
    Exited,
    Ready,
    Refused,
    Start,
    control,
)
from rollyard.wire.node import Attach, LeaseRef

pytestmark = pytest.mark.asyncio

Raw = web.WebSocketResponse


class Sleeper:
    """A sandbox whose program never reads its input."""

    alive = True

    def __init__(self) -> None:
        self.stdin, theirs = os.pipe()
        out, self._stdout = os.pipe()
        err, self._stderr = os.pipe()
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.program = Program(1, cast(Any, None), self.exit_code, [theirs, out, err])

    async def start_program(self, spec: ProgramSpec) -> Program:
        return self.program

    def end(self) -> None:
        for fd in (self.stdin, self._stdout, self._stderr):
            os.close(fd)


@asynccontextmanager
async def peer(work: Callable[[Raw], Awaitable[None]]) -> AsyncIterator[AttachedSocket]:
    """The socket of one end; `work` is the other end, with a raw WebSocket."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(request: web.Request) -> Raw:
        socket = Raw(max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        try:
            await work(socket)
            over.set_result(None)
        except BaseException as error:
            over.set_exception(error)
            raise
        return socket

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        async with http.ws_connect(server.make_url("/"), max_msg_size=MAX_MESSAGE_BYTES) as socket:
            yield AttachedSocket(socket)
        await over


async def serve(work: Callable[[Raw, Sleeper], Awaitable[None]]) -> AttachedSocket:
    """Serve an attachment as a node agent, while `work` is its client. Return the node agent's socket."""
    sandbox = Sleeper()

    async def client(raw: Raw) -> None:
        assert control(await raw.receive_str()) == Ready()
        await raw.send_str(Start(kind=AttachKind.EXEC, command=["sleep", "9"]).model_dump_json())
        await work(raw, sandbox)

    lease = LeaseRef(namespace="default", id="r", fence=1)
    try:
        async with asyncio.timeout(30), peer(client) as socket:
            run = Kept(lease, cast(Any, sandbox), 60)
            await _serve(socket, Attach(id="a", lease=lease, kind=AttachKind.EXEC.value), run)
            await socket.wait_until_closed(1)
            return socket
    finally:
        sandbox.end()


async def last(raw: Raw) -> Control | None:
    """Return the last message. Acknowledgements are ignored."""
    while isinstance(found := control(await raw.receive_str()), Acknowledge):
        pass
    return found


async def test_a_client_that_ignores_the_window_is_refused_with_a_reason() -> None:
    async def flood(raw: Raw, _: Sleeper) -> None:
        async def send() -> None:
            for _ in range(100 * WINDOW // CHUNK):
                await raw.send_bytes(bytes([STDIN]) + bytes(CHUNK))

        sending = asyncio.create_task(send())
        refused = await last(raw)
        assert isinstance(refused, Refused)
        assert refused.code == 400
        assert "more than 256 KiB of channel 0" in refused.message
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    await serve(flood)


async def test_a_whole_window_is_no_offence_and_other_messages_pass_it() -> None:
    async def fill(raw: Raw, sandbox: Sleeper) -> None:
        for _ in range(WINDOW // CHUNK):
            await raw.send_bytes(bytes([STDIN]) + bytes(CHUNK))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await last(raw)
        sandbox.exit_code.set_result(3)
        assert await last(raw) == Exited(code=3)

    await serve(fill)


async def test_messages_without_data_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Recorded(asyncio.Queue[Any]):
        def put_nowait(self, item: Any) -> None:
            super().put_nowait(item)
            lengths.append(self.qsize())

    async def flood(raw: Raw, sandbox: Sleeper) -> None:
        monkeypatch.setattr(asyncio, "Queue", Recorded)
        for _ in range(WINDOW // CHUNK):
            await raw.send_bytes(bytes([STDIN]) + bytes(CHUNK))
        for number in range(1000):
            await raw.send_bytes(bytes([STDIN]))
            await raw.send_str(EndInput().model_dump_json())
            await raw.send_str(Acknowledge(channel=number, bytes=1).model_dump_json())
        for _ in range(WINDOW // CHUNK):  # too many, so the refusal shows that everything before them was read
            await raw.send_bytes(bytes([STDIN]) + bytes(CHUNK))
        assert isinstance(await last(raw), Refused)

    socket = await serve(flood)
    assert 0 < max(lengths) <= WINDOW // CHUNK + 1
    assert len(socket._room) <= 3


async def test_a_kept_sandbox_that_ends_before_its_time_says_so() -> None:
    async def look(raw: Raw, sandbox: Sleeper) -> None:
        sandbox.exit_code.set_exception(SandboxLost("sandbox s: its socket was closed"))
        refused = await last(raw)
        assert isinstance(refused, Refused)
        assert "is gone, because its allocation drains or ends, or it has ended by itself; " in refused.message

    await serve(look)


async def test_output_beyond_the_window_ends_the_client_with_a_reason() -> None:
    async def flood(raw: Raw) -> None:
        for _ in range(WINDOW // CHUNK + 1):
            await raw.send_bytes(bytes([STDOUT]) + bytes(CHUNK))

    async with asyncio.timeout(30), peer(flood) as socket:
        with pytest.raises(BadRequest, match="256 KiB of channel 1"):
            async for _ in Attachment(socket).output():
                pass
