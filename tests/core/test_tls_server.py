"""The end of a TLS server whose peers do not confirm it."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aiohttp import web

from rollyard.core.tls_server import stop_tls_server
from tests.support.weights_yard import certified

__all__ = ["certified"]


async def test_a_peer_that_never_confirms_the_end_holds_no_connection(
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_tls, client_tls = certified
    runner = web.AppRunner(web.Application())
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener, ssl_context=server_tls).start()

    def call() -> ssl.SSLSocket:
        peer = client_tls.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname="127.0.0.1")
        peer.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 404")
        return peer

    with await asyncio.to_thread(call), await asyncio.to_thread(call), listener:
        assert runner.server is not None
        handler, closed_twice = runner.server.connections
        assert handler.transport is not None
        assert closed_twice.transport is not None
        connection = handler.transport.get_extra_info("socket")
        closed_twice.transport.close()
        closed_twice.transport.close()  # now asyncio no longer knows its socket
        await stop_tls_server(runner)
        assert connection.fileno() == -1
