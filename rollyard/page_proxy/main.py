"""Life of the proxy: it listens on this machine's loopback until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from aiohttp import web

from rollyard.client.kubeconfig import Context
from rollyard.client.server_connection import ServerConnection
from rollyard.core.errors import BadRequest
from rollyard.core.malformed_requests import OmitMalformedRequests
from rollyard.core.untrusted_connections import ConnectionLimiter, TrustedConnections
from rollyard.page_proxy.browser_sessions import BrowserSessions
from rollyard.page_proxy.handler import PageProxy
from rollyard.page_proxy.request_checks import PAGE

HEADER_SECONDS = 30.0
"""Seconds within which the whole header of each request must arrive."""
LINGER_SECONDS = 1.0
"""Seconds for which the proxy still reads after a refusal, so that the caller can send its body and read the response."""
READER_SECONDS = 120.0
"""Seconds after which the kernel ends a connection whose browser takes nothing of an answer."""
END_SECONDS = 0.1
"""Seconds for which open answers may go on after the end has begun. For aiohttp 0 means without a limit."""
MAX_UNTRUSTED = 128
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger(__name__)
_log.addFilter(OmitMalformedRequests())


async def serve_until_ended(context: Context, port: int, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. `announce` gets each address that signs a browser in.

    Raises BadRequest if the port is taken.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        await listen(context, port, announce, stack)
        await ended.wait()


async def listen(
    context: Context,
    port: int,
    announce: Callable[[str], None],
    stack: AsyncExitStack,
    now: Callable[[], float] | None = None,
) -> int:
    """Begin to serve, and return the port. The proxy stops when the stack is closed: open answers break off.

    Raises BadRequest.
    """
    listening = socket.socket()
    stack.callback(listening.close)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(READER_SECONDS * 1000))
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        raise BadRequest(f"cannot listen on port {port}: {error.strerror}; give another --port, or none") from None
    address = f"http://127.0.0.1:{listening.getsockname()[1]}{PAGE}?code="
    server = ServerConnection(context, retry_seconds=0)
    stack.push_async_callback(server.close)
    sessions = BrowserSessions(now or asyncio.get_running_loop().time)
    trusted = TrustedConnections()
    proxy = PageProxy(server, sessions, lambda code: announce(address + code), trusted)
    serving = web.Server(
        proxy.handle,
        handler_cancellation=True,  # what is passed on ends when the browser disconnects
        access_log=None,
        logger=_log,
        keepalive_timeout=HEADER_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    runner = web.ServerRunner(serving, shutdown_timeout=END_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    create = asyncio.get_running_loop().create_server
    accepting = await create(ConnectionLimiter(serving, trusted, MAX_UNTRUSTED), sock=listening)
    stack.callback(accepting.close)
    announce(address + sessions.new_code())
    return int(listening.getsockname()[1])
