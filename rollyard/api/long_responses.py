"""Answers that last: when the server stops they end at once, and who listened goes on at the next one."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from aiohttp import web


class _LongLivedTasks(WeakSet[asyncio.Task[object]]):
    """The tasks of such answers."""


_LONG_LIVED = web.AppKey("open", _LongLivedTasks)


def set_up(app: web.Application) -> None:
    app[_LONG_LIVED] = _LongLivedTasks()
    app.on_shutdown.append(_cancel_all)


def mark_long_lived(request: web.Request) -> None:
    """Called by a handler that waits for something to happen."""
    task = asyncio.current_task()
    assert task is not None
    request.app[_LONG_LIVED].add(task)


async def _cancel_all(app: web.Application) -> None:
    tasks = app[_LONG_LIVED]
    for task in list(tasks):
        task.cancel()
