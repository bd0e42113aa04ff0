"""A pool of stage workers: so many rollouts at once in a stage, the others in line, in order of arrival."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class StagePool:
    def __init__(self, width: int) -> None:
        self.width = width
        self.queued = 0
        self.in_flight = 0
        self._free = asyncio.Semaphore(width)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """A stage worker, as soon as one is free."""
        self.queued += 1
        try:
            await self._free.acquire()
        finally:
            self.queued -= 1
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._free.release()
