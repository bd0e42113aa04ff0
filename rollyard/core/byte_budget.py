"""Limit on the bytes of callers' requests in memory. Requests above the limit wait until earlier requests have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager


class ByteBudget:
    def __init__(self, most: int, within: ByteBudget | None = None) -> None:
        """`most`: greatest number of reserved bytes. A request may exceed this number if no other bytes are
        reserved.

        `within`: outer budget, in which the same bytes are reserved too.
        """
        self._most = most
        self._within = within
        self._reserved = 0
        self._waiting = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserve this many bytes while the block runs. Callers get their bytes in the order of their calls."""
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
