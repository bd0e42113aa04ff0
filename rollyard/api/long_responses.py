"""Long responses. When the server stops, it ends them at once; the clients then reconnect to the next server."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from aiohttp import web


class _LongLivedTasks(WeakSet[asyncio.Task[object]]):
    """Tasks of long responses."""

    stopping = False
    """True: the server stops, and has cancelled them."""


_LONG_LIVED = web.AppKey("long_lived", _LongLivedTasks)


def set_up(app: web.Application) -> None:
    app[_LONG_LIVED] = _LongLivedTasks()
    app.on_shutdown.append(_cancel_all)


def mark_long_lived(request: web.Request) -> None:
    """Mark the current task as a long response. Every handler that waits for an event calls this."""
    task = asyncio.current_task()
    assert task is not None
    request.app[_LONG_LIVED].add(task)


def is_ended_by_stop(request: web.Request) -> bool:
    """Return whether the current task has just been cancelled because the server stops. Then the cancellation is taken
    back, so that the task can end its response regularly."""
    task = asyncio.current_task()
    if task is None or not request.app[_LONG_LIVED].stopping:
        return False
    task.uncancel()
    return True


async def _cancel_all(app: web.Application) -> None:
    tasks = app[_LONG_LIVED]
    tasks.stopping = True
    for task in list(tasks):
        task.cancel()
