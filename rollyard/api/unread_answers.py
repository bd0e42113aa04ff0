"""Answers that their callers have not read yet. They cost memory, and a caller may read slowly, or not at all.

Large answers, and each portion of a stream, are sent in pieces: one large write would block the event loop while it is
encrypted, and all of it would be in memory a second time. All of them together have at most MOST_BYTES; beyond, the caller
that reads slowest loses its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from rollyard.api.error_status import Handler

PIECE_BYTES = 128 << 10
"""aiohttp waits for the reader after each write of more than 64 KiB."""
MOST_BYTES = 128 << 20
"""Greatest size of all of them. One alone may be larger."""
LEAST_SECONDS, LEAST_BYTES_A_SECOND = 120.0, 16 << 10
"""Time that each reader has, and the speed at which it has to read beyond."""
CREDIT_BYTES = 1 << 20
"""Bytes that count as read in the first second, so that the slowest reader is none that has only begun."""


class _Writes(Protocol):
    async def write(self, data: memoryview, /) -> None: ...


class _Answer:
    def __init__(self, request: web.Request, size: int) -> None:
        self._transport, self._loop = request.transport, asyncio.get_running_loop()
        self.size, self.written, self._began = size, 0, self._loop.time()

    @property
    def bytes_a_second(self) -> float:
        return (self.written + CREDIT_BYTES) / (self._loop.time() - self._began + 1.0)

    def cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class UnreadAnswers:
    def __init__(self, most: int) -> None:
        self._most = most
        self._unread = dict[_Answer, None]()

    @property
    def size(self) -> int:
        """Size of all answers that are not read to their end."""
        return sum(one.size for one in self._unread)

    async def send(self, request: web.Request, to: _Writes, data: bytes) -> None:
        """Send a part of an answer. Raises ConnectionResetError if the caller is cut off."""
        view = memoryview(data)
        with self._kept(_Answer(request, len(data))) as answer:
            try:
                async with asyncio.timeout(LEAST_SECONDS + len(data) / LEAST_BYTES_A_SECOND):
                    while answer.written < len(data):
                        piece = view[answer.written : answer.written + PIECE_BYTES]
                        await to.write(piece)
                        answer.written += len(piece)
            except TimeoutError:
                answer.cut_off()
                raise ConnectionResetError("the caller reads too slowly") from None

    @contextmanager
    def _kept(self, answer: _Answer) -> Iterator[_Answer]:
        self._unread[answer] = None
        try:
            self._make_room(answer)
            yield answer
        finally:
            self._unread.pop(answer, None)

    def _make_room(self, new: _Answer) -> None:
        while self.size > self._most and len(self._unread) > 1:
            slowest = min(self._unread.keys() - {new}, key=lambda one: one.bytes_a_second)
            del self._unread[slowest]
            slowest.cut_off()


_UNREAD = web.AppKey("unread_answers", UnreadAnswers)


def set_up(app: web.Application) -> None:
    app[_UNREAD] = UnreadAnswers(MOST_BYTES)


async def send_part(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send a part of a stream, as `UnreadAnswers.send` does."""
    await request.config_dict[_UNREAD].send(request, response, data)


@web.middleware
async def large_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware by which large answers are sent as `UnreadAnswers.send` does."""
    response = await handler(request)
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > PIECE_BYTES:
        response.body = _Pieces(request, response.body)
    return response


class _Pieces(Payload):
    def __init__(self, request: web.Request, data: bytes) -> None:
        super().__init__(data)
        self._request, self._size = request, len(data)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        data, self._value = self._value, b""  # the answer stays in memory until the caller has the last piece
        await self._request.config_dict[_UNREAD].send(self._request, writer, data)
