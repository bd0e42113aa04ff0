"""The reverse proxy of an engine. All requests to the allocation come to the proxy's TCP socket. The proxy requires TLS
and a token, and serves a short list of paths.

The engine listens on a Unix socket behind the proxy. Other paths of the engine (vLLM's /pause, /collective_rpc, …) are
not exposed. The routes of a weights transfer are exposed only while a weights update waits for a transfer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from rollyard.core.errors import Conflict
from rollyard.engine.proxy.epochs import EpochRelay, ProxyClosed, with_fields
from rollyard.engine.proxy.headers import HEADERS_SET_BY_AIOHTTP, end_to_end
from rollyard.engine.proxy.weights_transfer import ROUTES, TransferGate

log = logging.getLogger(__name__)

COMPLETIONS = ("POST", "/v1/completions")
GENERATE = ("POST", "/inference/v1/generate")
OPEN = {
    COMPLETIONS,
    GENERATE,
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/metrics"),
}
SERVED = OPEN | ROUTES
MAX_BODY_BYTES = 64 << 20
HEADER_SECONDS = 30.0
"""Limit for a request's header, and for an idle connection. Our own clients close idle connections earlier, after 15 s."""
LINGER_SECONDS = 1.0
"""Time for which the rest of a refused request is read, so that the caller can read the answer."""
RETRY_AFTER = "5"
"""Seconds after which a refused request may be repeated."""


class EngineProxy:
    """A reverse proxy that streams the answers to token requests. When a client disconnects, its request to the engine ends."""

    def __init__(self, engine: aiohttp.ClientSession, token: str) -> None:
        self._engine = engine
        self._tokens: tuple[str, ...] = (token,)
        self.epochs = EpochRelay()
        self.transfer = TransferGate(engine)
        self.ending = False
        """True while the engine is being ended. A missing answer is then expected, and not logged as a fault."""
        self._in_flight = 0
        self.idle = asyncio.Event()
        """Event that is set while no request is in progress."""
        self.idle.set()

    @property
    def token(self) -> str:
        """The token that new callers have."""
        return self._tokens[0]

    def accept(self, token: str) -> None:
        """Take a new token. The last one stays valid until `set_tokens`: leases from before a rotation have it."""
        if token not in self._tokens:
            self._tokens = (token, self._tokens[0])

    def set_tokens(self, tokens: Sequence[str]) -> None:
        """Accept these tokens only. A request that was accepted goes on."""
        self._tokens = tuple(tokens)

    async def open(self, listener: socket.socket, tls: ssl.SSLContext) -> web.AppRunner:
        """Serve on a bound socket until the runner is cleaned up. Raises OSError."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._forward)
        # The proxy must not decompress a body: the body's headers, which are forwarded, name the encoding.
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=2.0,
            auto_decompress=False,
            keepalive_timeout=HEADER_SECONDS,
            lingering_time=LINGER_SECONDS,
        )
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=tls).start()
        return runner

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not any(hmac.compare_digest(shown, f"Bearer {token}".encode()) for token in self._tokens):
            return _error(401, "Unauthorized", "send the endpoint's token: `Authorization: Bearer …`")
        if (request.method, request.path) not in SERVED:
            return _error(404, "NotFound", f"{request.method} {request.path} is not served here")
        self._in_flight += 1
        self.idle.clear()
        try:
            return await self._relay(request)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.idle.set()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        try:
            if (request.method, request.path) in ROUTES:
                return await self.transfer.relay(request)
            return await self._ask_engine(request)
        except ProxyClosed as why:
            refused = _error(503, "NotReady", str(why))
            refused.headers["Retry-After"] = RETRY_AFTER
            return refused
        except Conflict as why:
            return _error(why.code, why.reason, str(why))
        except aiohttp.ClientError as error:
            if self.ending:
                refused = _error(503, "NotReady", "this model server is shutting down")
                refused.headers["Retry-After"] = RETRY_AFTER
                return refused
            log.warning("the engine does not answer: %s: %s", type(error).__name__, error)
            return _error(502, "EngineLost", f"the engine does not answer: {type(error).__name__}")

    async def _ask_engine(self, request: web.Request) -> web.StreamResponse:
        """Send the request to the engine. Raises ProxyClosed, aiohttp.ClientError."""
        # request.path is decoded and in SERVED. The client may have written it in another way, such as with %-escapes.
        url = URL.build(scheme="http", host="engine", path=request.path, query_string=request.query_string)
        headers, body = end_to_end(request.headers), await request.read()

        async def ask(fields: Mapping[str, Any]) -> aiohttp.ClientResponse:
            sent = with_fields(body, fields)
            data = BytesIO(sent) if sent else None  # aiohttp would write plain bytes in one call, however long they are
            return await self._engine.request(
                request.method, url, headers=headers, data=data, skip_auto_headers=HEADERS_SET_BY_AIOHTTP
            )

        way = (request.method, request.path)
        if way in (COMPLETIONS, GENERATE):
            return await self.epochs.relay(request, ask, labelled=way == COMPLETIONS)
        return await _forward_query(request, await ask({}))


async def _forward_query(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Forward a short answer without tokens. Raises aiohttp.ClientError."""
    async with upstream:
        response = web.Response(
            status=upstream.status, headers=end_to_end(upstream.headers), body=await upstream.read()
        )
    await response.prepare(request)
    await response.write_eof()
    return response


def _error(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": reason, "code": code}}, status=code)
