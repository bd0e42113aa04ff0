"""The server's listening socket: TLS, time limits for handshakes and headers, a limit on connections without a token."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import AsyncExitStack
from functools import partial

from aiohttp import web

from rollyard.core.malformed_requests import OmitMalformedRequests
from rollyard.core.tls_server import limit_read_buffers, stop_tls_server
from rollyard.core.untrusted_connections import ConnectionLimiter, TrustedConnections

HANDSHAKE_SECONDS = 10.0
HEADER_SECONDS = 30.0
"""Seconds within which the whole header of each request must arrive."""
LINGER_SECONDS = 1.0
"""Seconds for which the server still reads after a refusal, so that the caller can send its body and read the response."""
READER_SECONDS = 120.0
"""Seconds after which the kernel ends a connection whose peer takes nothing of what the server sends. `unread_answers` bounds
what the server keeps for such peers until then."""
MAX_UNTRUSTED = 512
"""If this many connections have sent no valid token, each new connection closes the oldest of them. A connection is
counted only after its TLS handshake."""
WRITE_BYTES = 64 << 10
"""Bytes that wait in a connection for its reader, and at which its answer stops. asyncio has 512 KiB."""
BACKLOG = 1024

_log = logging.getLogger(__name__)
_log.addFilter(OmitMalformedRequests())


_TRUSTED_CONNECTIONS = web.AppKey("trusted_connections", TrustedConnections)


def set_up(app: web.Application) -> None:
    app[_TRUSTED_CONNECTIONS] = TrustedConnections()


def mark_trusted(request: web.Request) -> None:
    """Mark the caller's connection as trusted, so that new connections cannot displace it."""
    trusted, transport = request.config_dict[_TRUSTED_CONNECTIONS], request.transport
    if transport is not None and transport not in trusted:
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        trusted.add(transport)


async def listen(
    app: web.Application,
    host: str,
    port: int,
    tls: ssl.SSLContext,
    stack: AsyncExitStack,
    *,
    stop_seconds: float,
    preferred: int = 0,
) -> int:
    """Begin to serve, and return the port. The server stops when the stack is closed. Raises OSError.

    `preferred`: port to use if `port` is 0 and this port is free.
    """
    limit_read_buffers()
    runner = web.AppRunner(
        app,
        shutdown_timeout=stop_seconds,
        handler_cancellation=True,  # a request's handler is cancelled when the caller disconnects
        access_log=None,
        logger=_log,
        auto_decompress=False,  # aiohttp would unpack a body before the token is checked
        keepalive_timeout=HEADER_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(stop_tls_server, runner)
    assert runner.server is not None
    create = partial(
        asyncio.get_running_loop().create_server,
        ConnectionLimiter(runner.server, app[_TRUSTED_CONNECTIONS], MAX_UNTRUSTED),
        host,
        ssl=tls,
        backlog=BACKLOG,
        ssl_handshake_timeout=HANDSHAKE_SECONDS,
    )
    try:
        server = await create(port or preferred)
    except OSError:
        if port or not preferred:
            raise
        server = await create(0)
    for listening in server.sockets:  # the sockets of connections inherit the option
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(READER_SECONDS * 1000))
    stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])
