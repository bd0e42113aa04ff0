"""End of the node agent's allocation, before which rollouts leave that can go on in another one."""

from __future__ import annotations

import asyncio

from rollyard.core.aio import Waker

LAST_SECONDS = 20.0
"""Seconds before the end that are kept for the last turns and snapshots to arrive."""


class AllocationEnd:
    """The end that the server told last, by this process's clock."""

    def __init__(self) -> None:
        self._at = float("inf")
        self._changed = Waker()
        self.reason = ""
        """`HandBack.reason` of what leaves."""

    def set(self, seconds: float, reason: str) -> None:
        """`seconds`: from now."""
        self._at, self.reason = asyncio.get_running_loop().time() + seconds, reason
        self._changed.wake()

    def is_near(self, needed: float = 0.0) -> bool:
        """Whether the time until the last seconds is shorter than `needed` seconds."""
        return self._left() < needed

    async def near(self) -> None:
        """Wait until only the last seconds are left. A further call waits for another end."""
        while (left := self._left()) > 0:
            await self._changed.pause(min(left, 3600.0))

    async def changed(self) -> None:
        """Wait until the server tells another end."""
        while not await self._changed.pause(3600.0):
            pass

    def _left(self) -> float:
        return self._at - LAST_SECONDS - asyncio.get_running_loop().time()
