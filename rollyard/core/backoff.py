"""Waits between attempts at an action that fails for a while."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollyard.core.errors import Unavailable

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_SECONDS, CAP_SECONDS = 0.2, 5.0


class Backoff:
    """Random waits. The upper limit doubles with each attempt, up to a cap; the lower limit is a quarter of the upper."""

    def __init__(self, first: float = FIRST_SECONDS, cap: float = CAP_SECONDS) -> None:
        self._first, self._cap, self._tries = first, cap, 0

    def reset(self) -> None:
        self._tries = 0

    def seconds(self) -> float:
        """Return the length of the next wait."""
        ceiling = min(self._cap, self._first * 2.0**self._tries)
        self._tries += 1
        return random.uniform(ceiling / 4, ceiling)

    async def wait(self, at_least: float = 0.0) -> None:
        """Wait. `at_least`: least number of seconds, such as a server's `Retry-After`."""
        await asyncio.sleep(max(at_least, self.seconds()))


async def until_done(
    call: Callable[[], Awaitable[T]],
    doing: str,
    *,
    after: tuple[type[Exception], ...] = (Unavailable,),
    but: tuple[type[Exception], ...] = (),
    seconds: float = math.inf,
) -> T:
    """Repeat a call until it succeeds, and return its result. A reason that lasts is logged once.

    `doing`: what waits, for the log. The call is repeated for at most `seconds` after the errors `after`, except `but`. All
    other errors are raised.
    """
    backoff, logged, loop = Backoff(), "", asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await call()
        except but:
            raise
        except after as error:
            if loop.time() >= deadline:
                raise
            if str(error) != logged:
                logged = str(error)
                log.warning("still %s: %s", doing, error)
            await backoff.wait(getattr(error, "retry_after", None) or 0)
