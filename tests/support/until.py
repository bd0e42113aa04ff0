"""Wait for a condition, in place of sleeping for a guessed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(
    condition: Callable[[], Any], seconds: float = 60.0, *, every: float = 0.01, seen: Callable[[], Any] | None = None
) -> Any:
    """Return the condition's first true answer; the condition may be a coroutine function.

    Raises AssertionError after `seconds`, with the result of `seen`, which shows the state found instead.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(every)
    except TimeoutError:
        if not limit.expired():
            raise
    instead = seen() if seen else ""
    raise AssertionError(f"not within {seconds:g} s: {await instead if inspect.isawaitable(instead) else instead}")
