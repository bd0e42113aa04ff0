"""Work on one session's histories: one piece at a time, in a thread where there is an executor.

A conversation of 100,000 characters takes hundreds of milliseconds to tokenise. In a process whose loop serves others too,
that has to happen elsewhere, and the histories are not made for two threads at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


class Apart:
    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._turn = asyncio.Lock()
        self._left: list[Callable[[], None]] = []

    async def run(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Its result. Once begun it is carried out whoever gives up meanwhile; then `undo` follows."""
        if self._executor is None:
            return work()

        def carry_out() -> T:
            while self._left:
                self._left.pop(0)()
            return work()

        await self._turn.acquire()
        done = asyncio.get_running_loop().run_in_executor(self._executor, carry_out)
        done.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda done: self._given_up(done, undo))
            raise

    def later(self, work: Callable[[], None]) -> None:
        """At the next piece's beginning at the latest: for those who cannot wait, as they are being cancelled."""
        if self._executor is None:
            work()
        else:
            self._left.append(work)

    def _given_up(self, done: asyncio.Future[T], undo: Callable[[T], None] | None) -> None:
        if not done.cancelled() and done.exception() is None and undo is not None:
            result = done.result()
            self.later(lambda: undo(result))
