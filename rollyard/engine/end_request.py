"""The request that this process ends, by a signal or by the server's order to drain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollyard.core.aio import running

T = TypeVar("T")


class EndRequested(Exception):
    """The end was requested before the work was done."""


class EndRequest:
    def __init__(self) -> None:
        self.made = asyncio.Event()
        self._deadline = math.inf

    @property
    def seconds_left(self) -> float:
        """Time that running requests still have."""
        return self._deadline - asyncio.get_running_loop().time()

    def end_within(self, seconds: float) -> None:
        """Request the end. A second request makes the deadline earlier, never later."""
        self._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        self.made.set()

    async def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises EndRequested if the end is requested before, and what `work` raises."""
        async with running(work) as task, running(self.made.wait()) as made:
            await asyncio.wait({task, made}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise EndRequested
            return task.result()
