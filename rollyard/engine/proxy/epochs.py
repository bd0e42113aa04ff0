"""Relays token requests to the engine, and tells the client which weights version made each token of the answer.

An epoch is a period with one version of the weights. Invariants: Bytes belong to the epoch in which they are read from
the engine. No bytes are sent to a client before the weights of their epoch are verified. The code that changes the
weights therefore begins a new epoch only after all output of the old weights has been read or discarded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from rollyard.core.aio import end_tasks, wait_or_timeout
from rollyard.engine.proxy.headers import end_to_end
from rollyard.wire.endpoint import VERSION_HEADER

log = logging.getLogger(__name__)

QUIET_ROUND_TRIPS = 8
"""Number of round trips to a paused engine's HTTP server. If no token arrives during this many round trips in a row,
the server has no unsent token."""
ABORTED = {
    "index": 0,
    "text": "",
    "logprobs": {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
    "finish_reason": "abort",
    "stop_reason": None,
    "token_ids": [],
}
"""The last choice of a stream that the proxy ends. It has no tokens: all valid tokens have been sent before."""

Ask = Callable[[Mapping[str, Any]], Awaitable[aiohttp.ClientResponse]]
"""Function that sends a request to the engine, with the given fields set in the request's body."""


class ProxyClosed(Exception):
    """The proxy passes no request now; the message states the reason."""


@dataclass
class _Epoch:
    version: str
    """Version to send with the tokens. Empty if the engine itself sends it with the tokens, or if the weights have no
    version name."""
    fields: Mapping[str, Any]
    proven: bool | None = None
    judged: asyncio.Event = field(default_factory=asyncio.Event)

    def judge(self, proven: bool) -> None:
        self.proven = proven
        self.judged.set()


class _Truncated:
    """Marks the end of a truncated answer."""


Piece = tuple[_Epoch, bytes] | BaseException | _Truncated | None


@dataclass(eq=False)
class _ProxiedRequest:
    """One request that was sent to the engine."""

    question_task: asyncio.Task[aiohttp.ClientResponse]
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)
    """Pieces of the answer. They are read at once, even for a slow client: otherwise output could wait in the engine
    and be read in a later epoch."""
    pump: asyncio.Task[None] | None = None

    def truncate(self) -> None:
        if self.pump is not None:
            self.pump.cancel()
        self.pieces.put_nowait(_Truncated())

    async def close(self) -> None:
        """Close the connection to the engine, which then aborts the request."""
        if self.question_task.done() and not self.question_task.cancelled() and self.question_task.exception() is None:
            self.question_task.result().close()
        await end_tasks(*(task for task in (self.question_task, self.pump) if task is not None))


class _AskAgain(Exception):
    """The request must be sent to the engine again. The client has not received any part of an answer."""


class EpochRelay:
    """Relays all token requests of one proxy. It starts open, with weights that have no version name."""

    def __init__(self) -> None:
        self._epoch = _Epoch("", {})
        self._epoch.judge(proven=True)
        self._wait_seconds = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._requests: set[_ProxiedRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._reads = 0

    # for the code that changes the weights

    def close_entry(self, seconds: float) -> None:
        """Make new requests wait for `open_entry`. A request that has waited `seconds` is refused."""
        self._wait_seconds = seconds
        self._open.clear()

    def open_entry(self) -> None:
        self._open.set()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no request is at the engine, or the time is over. Return whether no request is at the engine."""
        return await wait_or_timeout(self._idle, seconds)

    def repeat_unanswered(self) -> None:
        """Cancel the requests that the engine has not begun to answer; each is sent again after `open_entry`."""
        for passage in self._requests:
            passage.question_task.cancel()  # no effect on a request with an answer

    def truncate_all(self) -> None:
        """End the running answers. Bytes that have been read are still sent if their weights are verified. Then a
        completions stream ends with finish_reason "abort", and the connection of any other answer is broken. Unanswered
        requests are sent to the engine again after `open_entry`."""
        self.repeat_unanswered()
        for passage in self._requests:
            passage.truncate()

    async def wait_until_read(self, turn: Callable[[], Awaitable[None]]) -> None:
        """Wait until all output of a paused engine has been read. `turn`: makes one round trip to the engine's
        HTTP server.

        The process that runs the HTTP server holds the output that is not read yet. This output arrives after a few
        iterations of that server's event loop and of ours. So nothing is unread if no token arrives during several
        round trips in a row.
        """
        while True:
            before = self._reads
            for _ in range(QUIET_ROUND_TRIPS):
                await turn()
            if self._reads == before:
                return

    def begin_epoch(self, version: str, fields: Mapping[str, Any]) -> None:
        """Begin an epoch with other weights. Bytes that are read from now on wait for `judge_epoch`. New requests get
        these `fields`."""
        self.judge_epoch(proven=False)
        self._epoch = _Epoch(version, fields)

    def judge_epoch(self, proven: bool) -> None:
        """If `proven`, send the tokens of the new weights. If not, end each answer before its first token of the new
        weights."""
        if self._epoch.proven is None:
            self._epoch.judge(proven)

    # for the proxy

    async def relay(self, request: web.Request, ask: Ask, labelled: bool) -> web.StreamResponse:
        """Relay the engine's answer. `labelled`: a stream gets an event before the first token of each version.

        Raises ProxyClosed. Raises aiohttp.ClientError if the engine is lost before its answer has begun.
        """
        while True:
            await self._enter()
            epoch = self._epoch
            try:
                async with self._proxied(ask(epoch.fields)) as passage:
                    return await self._answer(request, passage, labelled)
            except _AskAgain:
                continue

    async def _enter(self) -> None:
        if not await wait_or_timeout(self._open, self._wait_seconds):
            raise ProxyClosed("the engine is not ready, or its weights are being changed")

    @asynccontextmanager
    async def _proxied(self, question: Awaitable[aiohttp.ClientResponse]) -> AsyncIterator[_ProxiedRequest]:
        passage = _ProxiedRequest(asyncio.ensure_future(question))
        self._requests.add(passage)
        self._idle.clear()
        try:
            yield passage
        finally:
            self._requests.discard(passage)
            if not self._requests:
                self._idle.set()
            await passage.close()

    async def _answer(self, request: web.Request, passage: _ProxiedRequest, labelled: bool) -> web.StreamResponse:
        await asyncio.wait({passage.question_task})
        if passage.question_task.cancelled():
            raise _AskAgain
        upstream = passage.question_task.result()
        self._reads += 1
        epoch = self._epoch
        stream = upstream.content_type == "text/event-stream"
        labelled = labelled and stream and "Content-Encoding" not in upstream.headers
        passage.pump = asyncio.create_task(self._pump(passage, upstream, labelled))
        await epoch.judged.wait()
        if not epoch.proven:
            raise _AskAgain
        response = web.StreamResponse(status=upstream.status, headers=end_to_end(upstream.headers))
        if epoch.version and not stream:
            response.headers[VERSION_HEADER] = epoch.version
        await response.prepare(request)
        await self._write(request, response, passage, labelled)
        return response

    async def _pump(self, passage: _ProxiedRequest, upstream: aiohttp.ClientResponse, by_event: bool) -> None:
        rest = b""
        try:
            async for data in upstream.content.iter_any():
                self._reads += 1
                events, end, rest = (rest + data).rpartition(b"\n\n") if by_event else (data, b"", b"")
                if events:
                    passage.pieces.put_nowait((self._epoch, events + end))
            passage.pieces.put_nowait((self._epoch, rest))
            passage.pieces.put_nowait(None)
        except aiohttp.ClientError as error:
            passage.pieces.put_nowait(error)

    async def _write(
        self, request: web.Request, response: web.StreamResponse, passage: _ProxiedRequest, labelled: bool
    ) -> None:
        announced = ""
        while (piece := await passage.pieces.get()) is not None:
            if isinstance(piece, BaseException):
                log.warning("the engine's answer broke off: %s: %s", type(piece).__name__, piece)
                return _break_connection(request)
            if isinstance(piece, _Truncated) or not await _wait_until_judged(piece[0]):
                return await _end(request, response, labelled)
            epoch, data = piece
            if labelled and data and epoch.version not in ("", announced):
                announced = epoch.version
                data = _event({"object": "rollyard.weights", "weights_version": announced}) + data
            await response.write(data)
        await response.write_eof()


async def _wait_until_judged(epoch: _Epoch) -> bool:
    await epoch.judged.wait()
    return bool(epoch.proven)


async def _end(request: web.Request, response: web.StreamResponse, labelled: bool) -> None:
    """End a completions stream in its own format; break the connection of any other answer."""
    if not labelled:
        return _break_connection(request)
    await response.write(_event({"object": "text_completion", "choices": [ABORTED]}) + b"data: [DONE]\n\n")
    await response.write_eof()


def _break_connection(request: web.Request) -> None:
    """Break the connection. Any other end would look like a whole answer."""
    if request.transport is not None:
        request.transport.abort()


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Set these fields in a JSON object. The request's own `cache_salt` is kept as a part of the new one. The engine
    itself refuses a body that is not a JSON object."""
    if not fields:
        return body
    head = body.rstrip()
    if b'"cache_salt"' not in head and head.endswith(b"}") and head != b"{}":
        # The fields go to the end: if a JSON object has a key twice, the last value counts. Parsing and writing a body
        # with 32,000 ids would take milliseconds.
        return head[:-1] + b"," + json.dumps(dict(fields)).encode()[1:]
    try:
        request = json.loads(body)
    except ValueError:
        return body
    if not isinstance(request, dict):
        return body
    salts = [str(salt) for salt in (request.get("cache_salt"), fields.get("cache_salt")) if salt]
    return json.dumps({**request, **fields, **({"cache_salt": "/".join(salts)} if salts else {})}).encode()
