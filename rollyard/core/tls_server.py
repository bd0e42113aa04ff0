"""Connections of an HTTP server that serves over TLS: their memory, and their end."""

from __future__ import annotations

import asyncio
import time
from asyncio import sslproto
from typing import Any

from aiohttp import web

CLOSE_SECONDS = 1.0
"""Seconds within which peers may confirm the end of their TLS connections. Then the connections are aborted."""
READ_BUFFER_BYTES = 64 << 10


def limit_read_buffers() -> None:
    """Give the later TLS connections of this process smaller read buffers. asyncio gives each connection 256 KiB for its
    whole life, so a thousand idle ones would take 256 MiB."""
    sslproto.SSLProtocol.max_size = READ_BUFFER_BYTES


async def stop_tls_server(runner: web.AppRunner) -> None:
    """Clean up the runner, and return when the socket of each of its connections is closed.

    A TLS connection stays open until its peer confirms the end (`close_notify`). A suspended, overloaded or hostile peer
    may not confirm it; asyncio alone would then wait 30 s.
    """
    handlers = runner.server.connections if runner.server else []
    transports = [handler.transport for handler in handlers if handler.transport is not None]
    sockets = [found for transport in transports if (found := _socket(transport)) is not None]
    await runner.cleanup()
    deadline = time.monotonic() + CLOSE_SECONDS
    while any(socket.fileno() != -1 for socket in sockets):
        if time.monotonic() >= deadline:
            for transport in transports:
                transport.abort()
        await asyncio.sleep(0.01)


def _socket(transport: asyncio.BaseTransport) -> Any:
    """Return the socket of a connection; None if the transport is closed already.

    A TLS transport that was closed twice has no protocol any more, and asyncio raises AttributeError (CPython 3.11).
    """
    try:
        return transport.get_extra_info("socket")
    except AttributeError:
        return None
