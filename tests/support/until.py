"""Wait for a condition, in place of sleeping for a guessed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

LEAST_PAUSE, MOST_PAUSE = 0.01, 0.25
COSTLY_PAUSE = 0.08
"""First pause between two looks that cost a process or a request each."""


def pauses(least: float = LEAST_PAUSE) -> Iterator[float]:
    """Yield the seconds between two looks: about a tenth of the time waited until then. Looks cost CPU time that other
    tests need."""
    pause = least
    while True:
        yield pause
        pause = min(pause * 1.1, MOST_PAUSE)


async def until(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    *,
    every: float | None = None,
    least: float = LEAST_PAUSE,
    seen: Callable[[], Any] | None = None,
) -> Any:
    """Return the condition's first true answer; the condition may be a coroutine function.

    `every`: seconds between two looks, for a condition that may hold for a moment only. `least`: the first pause. Raises
    AssertionError after `seconds`, with the result of `seen`, which shows the state found instead.
    """
    pause = pauses(least)
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(every or next(pause))
    except TimeoutError:
        if not limit.expired():
            raise
    instead = seen() if seen else ""
    raise AssertionError(f"not within {seconds:g} s: {await instead if inspect.isawaitable(instead) else instead}")
