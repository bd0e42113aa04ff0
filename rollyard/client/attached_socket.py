"""One end of an attachment: a WebSocket with channels of data, each with a window (`wire/attach.py`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp

from rollyard.core.errors import BadRequest
from rollyard.wire.attach import CHUNK, WINDOW, Acknowledge, Control, control


class AttachedSocket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._room: dict[int, int] = {}
        """Channel -> number of bytes that may still be sent before the next acknowledgement."""
        self._more = asyncio.Event()
        self._unacknowledged: Counter[int] = Counter()
        """Channel -> number of received bytes that are not yet acknowledged."""

    async def send(self, message: Control) -> None:
        """Raises ConnectionError if the other end is gone."""
        await self._socket.send_str(message.model_dump_json())

    async def send_data(self, channel: int, data: bytes) -> None:
        """Send data as the other end acknowledges it. Raises ConnectionError if the other end is gone."""
        while data:
            while not (room := self._room.setdefault(channel, WINDOW)):
                self._more.clear()
                await self._more.wait()
            part, data = data[: min(room, CHUNK)], data[min(room, CHUNK) :]
            self._room[channel] -= len(part)
            await self._socket.send_bytes(bytes([channel]) + part)

    async def acknowledge(self, channel: int, count: int) -> None:
        self._unacknowledged[channel] -= count
        await self.send(Acknowledge(channel=channel, bytes=count))

    async def messages(self) -> AsyncIterator[Control | tuple[int, bytes]]:
        """Yield what the other end sends: messages, and pairs (channel, data). End when the other end is gone.

        Raises BadRequest if it sends more than it may: everything that is not yet acknowledged is kept in memory."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                try:
                    found = control(message.data)
                except ValueError:
                    return
                if isinstance(found, Acknowledge):
                    if found.channel in self._room:
                        self._room[found.channel] = min(WINDOW, self._room[found.channel] + found.bytes)
                        self._more.set()
                elif found is not None:
                    yield found
            elif message.type is aiohttp.WSMsgType.BINARY and len(message.data) > 1:
                channel, data = message.data[0], bytes(message.data[1:])
                self._unacknowledged[channel] += len(data)
                if self._unacknowledged[channel] > WINDOW:
                    raise BadRequest(
                        f"more than {WINDOW >> 10} KiB of channel {channel} were sent before they were acknowledged; wait for "
                        "the acknowledgements"
                    )
                yield channel, data

    async def wait_until_closed(self, seconds: float) -> None:
        """Wait until the other end has closed the connection, which shows that it has read everything. If this end closed
        first, the other end's library would drop messages that it has received and not yet read."""
        with contextlib.suppress(TimeoutError, BadRequest):
            async with asyncio.timeout(seconds):
                async for _ in self.messages():
                    pass
