"""Limit on the bytes of callers' requests in memory. A request without room waits until an earlier call has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager


class ByteBudget:
    def __init__(self, most: int, within: ByteBudget | None = None) -> None:
        """`most`: bytes at once; a single request may exceed this. `within`: an outer budget that must have room too."""
        self._most = most
        self._within = within
        self._reserved = 0
        self._waiting = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserve this many bytes for the block, in the order of the calls."""
        async with AsyncExitStack() as stack:
            async with self._waiting:
                while self._reserved and self._reserved + size > self._most:
                    self._freed.clear()
                    await self._freed.wait()
                self._reserved += size
            stack.callback(self._release, size)
            if self._within is not None:
                await stack.enter_async_context(self._within.reserve(size))
            yield

    def _release(self, size: int) -> None:
        self._reserved -= size
        self._freed.set()
