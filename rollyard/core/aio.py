"""Primitives for waiting and notifying on the event loop, shared by every process of Rollyard.

These primitives avoid four traps of asyncio. The first two occur when a wait ends in two ways in the same iteration of the
loop:

- `asyncio.wait_for` returns normally if its caller is cancelled in the iteration in which the awaited result arrives
  (github.com/python/cpython/issues/86296, fixed in Python 3.12). The cancellation is lost, so a loop that should end by
  a cancellation runs for ever.
- `asyncio.timeout` raises TimeoutError if its time is up in the iteration in which the awaited result arrives: a
  caller that waits for an event sees a time-out although the event is set.
- `asyncio.wait` does not cancel unfinished tasks, even if the caller of `asyncio.wait` is cancelled.
- If an `asyncio.Event` is cleared after the work instead of before the work, a `set` during the work is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def wait_or_timeout(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set or the time is up. Return whether the event is set. A cancellation is never lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return event.is_set()


class Waker:
    """Pause between two rounds of a loop. Any code on the event loop may end the pause early.

    A wake during the work ends the next pause at once, and many wakes count as one.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def pause(self, seconds: float) -> bool:
        """Wait until `wake` is called or the time is up. Return whether `wake` was called since the last pause."""
        woken = await wait_or_timeout(self._woken, seconds)
        self._woken.clear()
        return woken


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a coroutine beside the block. Leaving the block cancels the coroutine, and waits until it has ended.

    An exception of the coroutine is not raised here. The block can read it from the task.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end_tasks(task)


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these tasks, and wait until they have ended. Their exceptions are not raised here."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Signal(Generic[P]):
    """Event with listeners. A `Signal[Pool]` is emitted with a pool, a `Signal[[]]` without arguments."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def connect(self, listener: Callable[P, object]) -> None:
        """Add a listener for every later `emit`."""
        self._listeners = (*self._listeners, listener)  # a new tuple, because an `emit` may be running

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners, in the order in which they were connected.

        If listeners raise, the last exception is raised after all listeners were called. Each exception without a
        context gets the previous exception as its context.
        """
        error: BaseException | None = None
        for listener in self._listeners:
            try:
                listener(*args, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - raised below
                raised.__context__ = raised.__context__ or error
                error = raised
        if error is not None:
            raise error
