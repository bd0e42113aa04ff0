"""The only TCP socket of an allocation with an engine: TLS, a token, and a short list of paths.

Behind it the engine listens on a Unix socket; whatever else it serves (vLLM's /pause, /collective_rpc, …) stays shut.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl

import aiohttp
from aiohttp import web

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
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "host",
        "authorization",
    ]
)
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
        """Serve on a bound socket until the runner is cleaned up."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=tls).start()
        return runner

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._expected):
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
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        url, body = f"http://engine{request.path_qs}", await request.read()
        response: web.StreamResponse | None = None
        try:
            async with self._engine.request(request.method, url, headers=headers, data=body) as upstream:
                kept = {k: v for k, v in upstream.headers.items() if k.lower() not in HOP_BY_HOP}
                response = web.StreamResponse(status=upstream.status, headers=kept)
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


def _error(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": reason, "code": code}}, status=code)
