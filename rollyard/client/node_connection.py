"""A node agent's connection to the server: one WebSocket, opened again whenever it breaks or the server moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from rollyard.client.server_link import ServerLink, wait_until_moved
from rollyard.core.aio import running
from rollyard.core.backoff import Backoff
from rollyard.core.errors import Fenced, Incompatible, Unavailable, connection_failure_text
from rollyard.wire.node import CLOSE_FENCED, CLOSE_INCOMPATIBLE, FromNode, Hello, ToNode, Welcome, to_node

log = logging.getLogger(__name__)

WELCOME_SECONDS = 10.0


@dataclass(frozen=True)
class WelcomedSocket:
    """One connection whose Hello the server has answered."""

    welcome: Welcome
    url: str
    """Address of the server."""
    socket: aiohttp.ClientWebSocketResponse


class NodeConnection:
    """Connects, sends Hello, and passes messages in both directions. Without a connection, messages are dropped.

    A dropped message does no harm, because the next Hello lists all leases that the node agent holds.
    """

    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http
        self._backoff = Backoff()
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self, hello: Callable[[], Hello]) -> WelcomedSocket:
        """Connect, if necessary again and again, until the server answers a Hello with its Welcome.

        Raises Fenced if the server refuses this process: the allocation is gone, its job has ended, or another process
        runs the allocation. Raises Incompatible if the server cannot work with this release of the node agent.
        """
        while True:
            try:
                opened = await self._open(hello)
            except (aiohttp.ClientError, Unavailable, TimeoutError, OSError) as error:
                log.warning("no connection to the server: %s", connection_failure_text(error))
                await self._backoff.wait()
            else:
                self._backoff.reset()
                self._socket = opened.socket
                return opened

    async def receive(self, opened: WelcomedSocket, on_message: Callable[[ToNode], Awaitable[None]]) -> None:
        """Pass the server's further messages to `on_message` until the connection ends. Raises as `open`."""
        try:
            async with running(self._close_when_moved(opened)):
                async for message in opened.socket:
                    if message.type is aiohttp.WSMsgType.TEXT and (read := _read(message.data)) is not None:
                        await on_message(read)
            raise _refusal(opened.socket, "")
        except (aiohttp.ClientError, Unavailable, TimeoutError, OSError) as error:
            log.warning("the connection to the server ended: %s", connection_failure_text(error))
        finally:
            await opened.socket.close()
        await self._backoff.wait()

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

    async def _open(self, hello: Callable[[], Hello]) -> WelcomedSocket:
        url = await self._link.url()
        path = url.replace("https://", "wss://", 1) + "/v1/node/connect"
        socket = await self._http.ws_connect(path, heartbeat=15.0, max_msg_size=64 << 20)
        try:
            await socket.send_str(hello().model_dump_json())
            async with asyncio.timeout(WELCOME_SECONDS):
                first = await socket.receive()
            if first.type is not aiohttp.WSMsgType.TEXT:
                raise _refusal(socket, first.extra)
            if not isinstance(welcome := _read(first.data), Welcome):
                raise Unavailable("the first message of the server is no Welcome")
        except BaseException:
            await socket.close()
            raise
        return WelcomedSocket(welcome, url, socket)

    async def _close_when_moved(self, opened: WelcomedSocket) -> None:
        await wait_until_moved(self._link.url, opened.url)
        await opened.socket.close()


def _refusal(socket: aiohttp.ClientWebSocketResponse, why: str | None) -> Fenced | Incompatible | Unavailable:
    """Return the error that the code of a closed connection means."""
    code = socket.close_code
    if code == CLOSE_FENCED:
        return Fenced(f"the server refused this node agent: {why or 'fenced'}")
    if code == CLOSE_INCOMPATIBLE:
        return Incompatible(f"the server refused this node agent: {why or 'protocol'}")
    return Unavailable(f"the server closed it (code {code})")


def _read(text: str) -> ToNode | None:
    """Return a message of the server; None if it cannot be read, or has an unknown type."""
    try:
        return to_node(text)
    except ValueError as error:
        log.warning("unreadable message of the server: %s", error)
        return None
