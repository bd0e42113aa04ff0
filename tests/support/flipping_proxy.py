"""A proxy that changes one bit of what passes, as a broken machine on the way does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FlippingProxy:
    """Passes bytes to a port of this machine, in both directions."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.mark = b""
        """Bytes whose last bit is flipped when they pass; empty: nothing is changed."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FlippingProxy]:
        async with await asyncio.start_server(self._pass, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_target, to_target = await asyncio.open_connection("127.0.0.1", self._target)
        ends = {self._forward(reader, to_target), self._forward(from_target, writer)}
        try:
            await asyncio.wait([asyncio.create_task(end) for end in ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_target.close()
            writer.close()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if self.mark and self.mark in data:
                    data = data.replace(self.mark, self.mark[:-1] + bytes([self.mark[-1] ^ 1]))
                sink.write(data)
                await sink.drain()
