"""Answers that an earlier run of the same agent got. Its requests get them again, as long as they are the same in the same
order. The first other request drops those that are left."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rollyard.gateway.session.stored_call import StoredCall

ORDER_SECONDS = 5.0
"""Greatest time that a request waits for those whose answers ended before its own. Requests that are made at the same time may
arrive in another order than then."""


class SavedCalls:
    def __init__(self, calls: Sequence[StoredCall], report: Callable[[int, str | None], Awaitable[None]]) -> None:
        """`report` is called once, before the first request that gets no saved answer: with the number of calls whose answers
        were given again, and why the others were not."""
        self._left = deque(calls)
        self._report: Callable[[int, str | None], Awaitable[None]] | None = report
        self._given = 0
        self._changed = asyncio.Event()

    async def take(self, identity: str) -> StoredCall | None:
        """Return the next call, if a request with this `StoredCall.identity` made it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ORDER_SECONDS):
                while any(call.identity == identity for call in self._left):
                    if self._left[0].identity == identity:
                        self._given += 1
                        self._tell_change()
                        return self._left.popleft()
                    await self._changed.wait()
        return None

    @property
    def ended(self) -> bool:
        return self._report is None

    async def end(self, why: str) -> None:
        """Give no further answers. `why`: reason, if any are left."""
        if (report := self._report) is not None:
            self._report = None
            dropped = f"call {self._given + 1}: {why}" if self._left else None
            self._left.clear()
            self._tell_change()
            await report(self._given, dropped)

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
