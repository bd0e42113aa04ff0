"""Runs the work on one session's histories, one piece at a time, because the histories are not thread-safe.

Long pieces run in a thread. To tokenise 100,000 characters takes hundreds of milliseconds, during which the event loop
must serve other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")
THREAD_ABOVE_CHARACTERS = 1 << 16
"""A piece of work on at least this many characters runs in a thread. A million characters take seconds."""


class SerialExecutor:
    def __init__(self, executor: Executor | None = None, long: int = THREAD_ABOVE_CHARACTERS) -> None:
        """`executor`: provides the threads; default: the loop's executor. `long`: work on at least this many characters
        runs in a thread."""
        self._executor = executor
        self._long = long
        self._lock = asyncio.Lock()
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    async def run(self, work: Callable[[], T], characters: int, undo: Callable[[T], None] | None = None) -> T:
        """Run `work` and return its result. If the caller is cancelled, work that has begun is still finished; `undo`
        is then called with the result."""
        await self._lock.acquire()
        if characters < self._long:
            try:
                return work()
            finally:
                self._done()
        try:
            done = asyncio.get_running_loop().run_in_executor(self._executor, work)
        except BaseException:  # the executor is shut down
            self._done()
            raise
        done.add_done_callback(lambda _: self._done())
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            # a thread cannot be stopped, so the result for a cancelled caller is undone
            done.add_done_callback(lambda done: self._finish_abandoned(done, undo))
            raise

    def run_soon(self, work: Callable[[], None]) -> None:
        """Run `work` at once, or right after the current piece of work. This is for callers that cannot wait, for
        example because they are being cancelled."""
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
