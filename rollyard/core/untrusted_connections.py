"""Limit on a server's connections whose peers have not proved that they may use it."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from aiohttp import web


class TrustedConnections(WeakSet[asyncio.BaseTransport]):
    """Connections whose peers have proved that they may use the server. New connections cannot displace them."""


class ConnectionLimiter:
    """Makes a handler for each new connection. If too many connections are untrusted, closes the oldest of them."""

    def __init__(self, server: web.Server, trusted: TrustedConnections, most: int) -> None:
        self._server, self._trusted, self._most = server, trusted, most

    def __call__(self) -> web.RequestHandler:
        there = self._server.connections
        if len(there) >= self._most:
            untrusted = [handler for handler in there if handler.transport not in self._trusted]
            if len(untrusted) >= self._most:
                untrusted[0].force_close()
        return self._server()
