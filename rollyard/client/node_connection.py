"""A node agent's connection to the server: one WebSocket, opened again whenever it breaks or the server moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp

from rollyard.client.server_link import ServerLink, wait_until_moved
from rollyard.core.aio import running
from rollyard.core.backoff import Backoff
from rollyard.core.errors import Fenced, Incompatible, Unavailable, connection_failure_text
from rollyard.wire.node import CLOSE_FENCED, CLOSE_INCOMPATIBLE, FromNode, Hello, ToNode, to_node

log = logging.getLogger(__name__)

WELCOME_SECONDS = 10.0


class NodeConnection:
    """Connects, sends Hello, and passes messages in both directions. Without a connection, messages are dropped.

    A dropped message does no harm, because the next Hello lists all leases that the node agent holds.
    """

    def __init__(
        self,
        link: ServerLink,
        http: aiohttp.ClientSession,
        hello: Callable[[], Hello],
        on_message: Callable[[ToNode], Awaitable[None]],
    ) -> None:
        self._link = link
        self._http = http
        self._hello = hello
        self._on_message = on_message
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def run(self) -> None:
        """Stay connected without end.

        Raises Fenced if the server refuses this process: the allocation is gone, its job has ended, or another process
        runs the allocation. Raises Incompatible if the server cannot work with this release of the node agent.
        """
        backoff = Backoff()
        while True:
            try:
                await self._connect(backoff)
            except (aiohttp.ClientError, Unavailable, TimeoutError, OSError) as error:
                log.warning("no connection to the server: %s", connection_failure_text(error))
            finally:
                self._socket = None
            await backoff.wait()

    async def send(self, message: FromNode) -> bool:
        """Send a message. Return False if there is no connection."""
        socket = self._socket
        if socket is None or socket.closed:
            return False
        try:
            await socket.send_str(message.model_dump_json())
        except (ConnectionError, aiohttp.ClientError):
            return False
        return True

    async def _connect(self, backoff: Backoff) -> None:
        base = await self._link.url()
        url = base.replace("https://", "wss://", 1) + "/v1/node/connect"
        async with (
            self._http.ws_connect(url, heartbeat=15.0, max_msg_size=64 << 20) as socket,
            running(self._close_when_moved(socket, base)),
        ):
            await socket.send_str(self._hello().model_dump_json())
            async with asyncio.timeout(WELCOME_SECONDS):
                first = await socket.receive()
            if first.type is aiohttp.WSMsgType.TEXT:
                await self._receive(first.data)
                self._socket = socket
                backoff.reset()
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        await self._receive(message.data)
            if socket.close_code == CLOSE_FENCED:
                raise Fenced(f"the server refused this node agent: {first.extra or 'fenced'}")
            if socket.close_code == CLOSE_INCOMPATIBLE:
                raise Incompatible(f"the server refused this node agent: {first.extra or 'protocol'}")
            log.warning("the server closed the connection (code %s)", socket.close_code)

    async def _close_when_moved(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        await wait_until_moved(self._link.url, url)
        await socket.close()

    async def _receive(self, text: str) -> None:
        try:
            message = to_node(text)
        except ValueError as error:
            log.warning("unreadable message of the server: %s", error)
            return
        if message is not None:
            await self._on_message(message)
