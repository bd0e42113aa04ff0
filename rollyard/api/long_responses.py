"""Answers that last: when the server stops they end at once, and who listened goes on at the next one."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from aiohttp import web


class _Open(WeakSet[asyncio.Task[object]]):
    """The tasks of such answers."""


_OPEN = web.AppKey("open", _Open)


def set_up(app: web.Application) -> None:
    app[_OPEN] = _Open()
    app.on_shutdown.append(_end)


def lasts(request: web.Request) -> None:
    """Called by a handler that waits for something to happen."""
    task = asyncio.current_task()
    assert task is not None
    request.app[_OPEN].add(task)


async def _end(app: web.Application) -> None:
    tasks = app[_OPEN]
    for task in list(tasks):
        task.cancel()
