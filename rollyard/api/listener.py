"""The listener: TLS, and limits on what a caller can hold without showing a token."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import AsyncExitStack
from weakref import WeakSet

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

HANDSHAKE_SECONDS = 10.0
HEADER_SECONDS = 30.0
"""Until a connection has sent the whole header of its first request, and of its next one behind each answer."""
LINGER_SECONDS = 1.0
"""A caller that is refused while it sends is read for so long, that it may see the answer; then it is cut off."""
MAX_UNTRUSTED = 512
"""Connections without a token so far. Above that the oldest go, so that there is always room for who has one."""
BACKLOG = 1024


class _OmitClientErrors(logging.Filter):
    """Without what callers send that is no HTTP: they get a 400, and could fill the disk with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log = logging.getLogger(__name__)
_log.addFilter(_OmitClientErrors())


class _TrustedConnections(WeakSet[asyncio.BaseTransport]):
    """Connections that have shown a good token."""


_TRUSTED_CONNECTIONS = web.AppKey("known", _TrustedConnections)


def set_up(app: web.Application) -> None:
    app[_TRUSTED_CONNECTIONS] = _TrustedConnections()


def mark_trusted(request: web.Request) -> None:
    """The caller has shown a good token: its connection keeps its place."""
    if request.transport is not None:
        request.config_dict[_TRUSTED_CONNECTIONS].add(request.transport)


async def listen(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext, stack: AsyncExitStack, *, stop_seconds: float
) -> int:
    """Serve until the stack is closed; answers the port. Raises OSError."""
    runner = web.AppRunner(
        app,
        shutdown_timeout=stop_seconds,
        handler_cancellation=True,  # a caller that goes away ends its handler
        access_log=None,
        logger=_log,
        auto_decompress=False,  # aiohttp would unpack a body before anybody has looked at the token
        keepalive_timeout=HEADER_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(
        _ConnectionLimiter(runner.server, app[_TRUSTED_CONNECTIONS]),
        host,
        port,
        ssl=tls,
        backlog=BACKLOG,
        ssl_handshake_timeout=HANDSHAKE_SECONDS,
    )
    stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


class _ConnectionLimiter:
    """Makes the handler of each new connection; the oldest of too many unknown ones is closed for it."""

    def __init__(self, server: web.Server, known: _TrustedConnections) -> None:
        self._server, self._trusted = server, known

    def __call__(self) -> web.RequestHandler:
        there = self._server.connections
        if len(there) >= MAX_UNTRUSTED:
            unknown = [handler for handler in there if handler.transport not in self._trusted]
            if len(unknown) >= MAX_UNTRUSTED:
                unknown[0].force_close()
        return self._server()
