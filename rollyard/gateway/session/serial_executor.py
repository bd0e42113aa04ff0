"""Work on one session's histories: one piece at a time, and long ones in a thread.

A conversation of 100,000 characters takes hundreds of milliseconds to tokenise. The loop serves others meanwhile, and the
histories are not made for two threads at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")
THREAD_ABOVE_CHARACTERS = 1 << 16
"""From there on a piece is carried out in a thread: a million characters take seconds."""


class SerialExecutor:
    def __init__(self, executor: Executor | None = None, long: int = THREAD_ABOVE_CHARACTERS) -> None:
        """`executor`: whose threads, the loop's own by default. `long`: in characters."""
        self._executor = executor
        self._long = long
        self._lock = asyncio.Lock()
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    async def run(self, work: Callable[[], T], characters: int, undo: Callable[[T], None] | None = None) -> T:
        """Its result. Once begun it is carried out whoever gives up meanwhile; then `undo` follows."""
        await self._lock.acquire()
        if characters < self._long:
            try:
                return work()
            finally:
                self._done()
        try:
            done = asyncio.get_running_loop().run_in_executor(self._executor, work)
        except BaseException:  # its threads are shut down
            self._done()
            raise
        done.add_done_callback(lambda _: self._done())
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            # a thread cannot be stopped, and what it comes to is nobody's
            done.add_done_callback(lambda done: self._finish_abandoned(done, undo))
            raise

    def run_soon(self, work: Callable[[], None]) -> None:
        """Now, or right behind the piece under way: for those who cannot wait, as they are being cancelled."""
        if self.busy:
            self._waiting.append(work)
        else:
            work()

    def _finish_abandoned(self, done: asyncio.Future[T], undo: Callable[[T], None] | None) -> None:
        if undo is not None and not done.cancelled() and done.exception() is None:
            result = done.result()
            self.run_soon(lambda: undo(result))

    def _done(self) -> None:
        left, self._waiting = self._waiting, []
        try:
            for work in left:
                work()
        finally:
            self._lock.release()
