"""The only TCP socket of an allocation with an engine: TLS, a token, and a short list of paths.

Behind it the engine listens on a Unix socket; whatever else it serves (vLLM's /pause, /collective_rpc, …) stays shut.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
from io import BytesIO

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

log = logging.getLogger(__name__)

OPEN = {
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/inference/v1/generate"),
}
HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""RFC 9110, 7.6.1: about this connection, so not for the next one."""
OWN = frozenset(["content-length", "host", "authorization", "expect"])
"""Answered or set anew here; the door's token is no business of the engine's."""
AUTOMATIC = ("Accept-Encoding", "User-Agent", "Content-Type")
"""What aiohttp would add: an engine must see what the client said and no more."""
MAX_BODY_BYTES = 64 << 20


class Door:
    """A reverse proxy that streams both ways; a client that goes takes its request with it."""

    def __init__(self, engine: aiohttp.ClientSession, token: str) -> None:
        self._engine = engine
        self._expected = f"Bearer {token}".encode()
        self._in_flight = 0
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()

    async def open(self, listener: socket.socket, tls: ssl.SSLContext) -> web.AppRunner:
        """Serve on a bound socket until the runner is cleaned up. Raises OSError."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._pass)
        # Bodies pass as they are: what is compressed for the engine is not for us to unpack.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0, auto_decompress=False
        )
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=tls).start()
        return runner

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, self._expected):
            return _error(401, "Unauthorized", "send the endpoint's token: `Authorization: Bearer …`")
        if (request.method, request.path) not in OPEN:
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
        # The path is one of the list's, whatever spelling of it the client chose.
        url = URL.build(scheme="http", host="engine", path=request.path, query_string=request.query_string)
        headers, body = _end_to_end(request.headers), await request.read()
        data = BytesIO(body) if body else None  # plain bytes would be written in one go, however many
        response: web.StreamResponse | None = None
        try:
            async with self._engine.request(
                request.method, url, headers=headers, data=data, skip_auto_headers=AUTOMATIC
            ) as upstream:
                response = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError as error:
            log.warning("the engine broke off: %s: %s", type(error).__name__, error)
            if response is None:
                return _error(502, "EngineLost", f"the engine does not answer: {type(error).__name__}")
            if request.transport is not None:
                request.transport.abort()  # the answer has begun: its only honest end is a broken connection
            return response


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers that go on, without those that `Connection` names."""
    named = {name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",")}
    kept = ((k, v) for k, v in headers.items() if k.lower() not in HOP_BY_HOP | OWN | named)
    return CIMultiDict(kept)


def _error(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": reason, "code": code}}, status=code)
