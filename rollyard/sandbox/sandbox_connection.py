"""The client of the sandbox agent. It makes many concurrent calls on one Unix socket, and matches replies by id.

`rollyard.sandbox_agent.frames` is the sandbox agent's side, and describes the frames.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from rollyard.core.errors import SandboxLost, SandboxSilent
from rollyard.sandbox_agent.frames import LENGTHS, Header

MAX_FRAME = 1 << 30
Frame = tuple[Header, bytes]
_encode = json.JSONEncoder(separators=(",", ":")).encode


class SandboxConnection(asyncio.Protocol):
    """The connection to one sandbox agent. Once the connection is lost, calls fail with SandboxLost. If a call is
    cancelled, the sandbox agent gets a message to stop the call's work."""

    def __init__(self) -> None:
        self.hello: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._transport: asyncio.Transport | None = None
        self._end: str | None = None

    @property
    def alive(self) -> bool:
        return self._transport is not None and self._end is None

    def send(self, header: Header, body: bytes = b"") -> None:
        if self._transport is None or self._end is not None:
            raise SandboxLost(self._end or "the connection to the sandbox is not open")
        head = _encode(header).encode()
        self._transport.write(LENGTHS.pack(len(head), len(body)) + head + body)

    async def call(self, header: Header, body: bytes, limit: float | None) -> Frame:
        """Send a call and return the reply. If no reply comes within `limit` seconds, the sandbox counts as lost. With a
        `limit` of None the call may take any time. Raises SandboxLost, and SandboxSilent if no reply comes."""
        number = next(self._ids)
        reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.send({"id": number, **header}, body)
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(limit):
                return await reply
        except TimeoutError:
            self.abort(f"the sandbox gave no answer within {limit:g} s")
            raise SandboxSilent(self._end) from None
        except asyncio.CancelledError:
            if self.alive:
                self.send({"op": "cancel", "id": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def abort(self, why: str) -> None:
        """Close the connection. Every waiting call fails with SandboxLost."""
        self._end = self._end or why
        if self._transport is not None:
            self._transport.abort()
        pending: list[asyncio.Future[Any]] = [self.hello, *self._waiting.values()]
        for waiting in pending:
            if not waiting.done():
                waiting.set_exception(SandboxLost(self._end))
        # mark the error as read: asyncio logs an error that no caller reads
        if self.hello.done() and not self.hello.cancelled():
            self.hello.exception()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort("the sandbox ended" if exc is None else f"the connection to the sandbox broke: {exc}")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTHS.size:
            head_length, body_length = LENGTHS.unpack_from(self._buffer)
            end = LENGTHS.size + head_length + body_length
            if end > MAX_FRAME:
                self.abort("the sandbox sent an invalid frame")
                return
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                head = json.loads(bytes(view[LENGTHS.size : LENGTHS.size + head_length]))
                body = bytes(view[LENGTHS.size + head_length : end])
            del self._buffer[:end]
            self._deliver(head, body)

    def _deliver(self, header: Header, body: bytes) -> None:
        if not self.hello.done():
            self.hello.set_result(header)
        elif (waiting := self._waiting.get(header.get("id", 0))) and not waiting.done():
            waiting.set_result((header, body))
