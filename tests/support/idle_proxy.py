"""A reverse proxy that cuts connections on which nothing passes for a while, as many in front of web servers do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

IDLE_SECONDS = 1.0


class IdleProxy:
    """Passes bytes to a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.cuts = 0
        """Number of connections that were cut."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[IdleProxy]:
        open_ones: set[asyncio.Task[None]] = set()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._pass(reader, writer))
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)

        async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                for task in open_ones:
                    task.cancel()
                await asyncio.gather(*open_ones, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the bytes of one connection until an end closes it, or nothing passes for too long."""
        try:
            from_target, to_target = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return writer.transport.abort()
        passed = asyncio.Event()

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    passed.set()
                    sink.write(data)
                    await sink.drain()

        ends = [asyncio.create_task(forward(reader, to_target)), asyncio.create_task(forward(from_target, writer))]
        try:
            while not any(end.done() for end in ends):
                passed.clear()
                waiting = asyncio.create_task(passed.wait())
                await asyncio.wait([*ends, waiting], timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not passed.is_set() and not any(end.done() for end in ends):
                    self.cuts += 1
                    return
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            for sink in (writer, to_target):
                sink.transport.abort()
