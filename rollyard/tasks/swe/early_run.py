"""A run that may begin before it is known that it is needed, while a core is idle.

On a busy node every core second of such a run would be missing elsewhere, and many would be spent in vain: work that does not
pass the tests needs no control run. On a node with an idle core the run costs nothing, and its time is saved.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


def core_is_idle() -> bool:
    """Whether this machine has a core for one more program beside one that is about to start. The number of programs that run
    has this process in it, which is about to wait."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return running < len(os.sched_getaffinity(0))


class EarlyRun(Generic[T]):
    """Owner of the run. The end of the block ends it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[T] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def begin(self, run: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.create_task(run)

    @property
    def begun(self) -> bool:
        return self._task is not None

    async def result(self) -> T:
        """Return the run's result, or raise its fault."""
        assert self._task is not None
        return await self._task

    async def end(self) -> None:
        """End the run. A fault of a run that is not needed makes no difference."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
