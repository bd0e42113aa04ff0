"""The gate for a trainer that moves weights into the running engine. It is open only while an update waits for a
transfer.

The routes are vLLM's. The embedded engine has three of them: start, update and finish. The bodies of calls and answers
pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web
from yarl import URL

from rollyard.core.aio import wait_or_timeout
from rollyard.core.errors import Conflict
from rollyard.engine.proxy.headers import HEADERS_SET_BY_AIOHTTP, end_to_end

FINISH = ("POST", "/finish_weight_update")
ROUTES = {
    FINISH,
    ("GET", "/get_world_size"),
    ("POST", "/init_weight_transfer_engine"),
    ("POST", "/start_weight_update"),
    ("POST", "/update_weights"),
}
SILENCE_SECONDS = 120.0
"""Limit for the time between two calls of a trainer, and before the first call. The trainer may have to wait for other
endpoints."""
CALL_SECONDS = 600.0
"""Limit from the end of one call to the end of the next. One call may move all tensors of a large model."""


class TransferGate:
    """The gate of one engine."""

    def __init__(self, engine: aiohttp.ClientSession) -> None:
        self._engine = engine
        self._open = False
        self.begun = False
        """True: a POST, which may change the engine, has been sent since the gate was opened."""
        self._finished = asyncio.Event()
        self._calls: set[asyncio.Task[web.Response]] = set()
        self._last_call_at = 0.0
        """Loop time at which the gate was opened or, later, the engine last accepted a call. A refused call does not
        change this time, because a trainer may repeat such a call for ever."""

    async def wait_until_finished(self, given_up: Callable[[], str], poll_seconds: float) -> str:
        """Admit the trainer's calls until the transfer is finished. Return the reason if it was not finished, else an
        empty text.

        `given_up`: returns the reason to give the transfer up, or an empty text.
        """
        self._open, self.begun = True, False
        self._finished.clear()
        self._note_call()
        try:
            while not self._finished.is_set():
                if why := given_up() or self._why_overdue():
                    return why
                await wait_or_timeout(self._finished, poll_seconds)
            return ""
        finally:
            self._open = False
            for call in self._calls:
                call.cancel()

    async def relay(self, request: web.Request) -> web.Response:
        """Relay the engine's answer. Raises Conflict if no update waits for a transfer, or if the transfer is given
        up during the call. Raises aiohttp.ClientError if the engine is lost."""
        if not self._open:
            raise Conflict("this engine expects no transfer now; send weights only while it is Transferring")
        call = asyncio.create_task(self._forward(request))
        self._calls.add(call)
        try:
            await asyncio.wait({call})
        finally:
            call.cancel()
            self._calls.discard(call)
        if call.cancelled():
            raise Conflict("the transfer was given up; the engine has loaded its weights from a folder")
        return call.result()

    async def _forward(self, request: web.Request) -> web.Response:
        url = URL.build(scheme="http", host="engine", path=request.path, query_string=request.query_string)
        self.begun = self.begun or request.method == "POST"
        async with self._engine.request(
            request.method,
            url,
            headers=end_to_end(request.headers),
            data=request.content if request.can_read_body else None,
            skip_auto_headers=HEADERS_SET_BY_AIOHTTP,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            made = web.Response(status=answer.status, headers=end_to_end(answer.headers), body=await answer.read())
        if answer.status < 300:
            self._note_call()
            if (request.method, request.path) == FINISH:
                self._open = False
                self._finished.set()
        return made

    def _why_overdue(self) -> str:
        now, limit = asyncio.get_running_loop().time(), CALL_SECONDS if self._calls else SILENCE_SECONDS
        if now - self._last_call_at <= limit:
            return ""
        how = "one call of the trainer lasted" if self._calls else "the trainer was silent"
        return f"TransferLost: {how} for {limit:g} s"

    def _note_call(self) -> None:
        self._last_call_at = asyncio.get_running_loop().time()
