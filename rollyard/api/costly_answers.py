"""Turns for answers that cost much: searches and sums over many rollouts, statistics, whole trajectories as JSON.

Two are made at a time. Callers take turns, so that one with many requests waits behind its own, and no other request waits for
any of these. A caller is the holder of a token at an address.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import TypeVar

from aiohttp import web

from rollyard.api.auth import CLAIMS
from rollyard.core.errors import Unavailable

AT_ONCE = 2
MOST_WAITING, MOST_WAITING_OF_CALLER = 4096, 1024
"""A request that waits costs some KiB. One that is refused comes again, and costs time of the event loop each time."""
WAIT_SECONDS = 60.0
RETRY_SECONDS = (2, 10)
"""Shortest and longest time that a refusal names, so that requests refused at one moment do not return at one moment."""

SWITCH_SECONDS = 0.0005
"""Time for which a thread that makes an answer may keep the interpreter while the event loop wants it. At each system call the
loop waits again, and Python's own 5 ms would add up to seconds (`bench.hostile`). Without costly answers such short times would
only cost: a quarter of the CPU time of a null rollout."""


class Turns:
    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = self._all = at_once
        self._usual_switch = sys.getswitchinterval()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Caller -> its requests that wait, in order. The first caller has waited the longest since its last turn."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it within the block. Raises Unavailable if too many wait, or after WAIT_SECONDS."""
        if self._free:
            self._free -= 1
            sys.setswitchinterval(SWITCH_SECONDS)
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def make(self, caller: str, answer: Callable[[], Awaitable[A]]) -> A:
        """Make an answer in a turn. Raises the errors of `take`.

        The turn lasts until the answer is made, also if the caller leaves before: a thread cannot be stopped, and callers who
        ask and leave would have any number of them at work.
        """
        async with self.take(caller):
            making = asyncio.ensure_future(answer())
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:
                await asyncio.gather(making, return_exceptions=True)
                raise

    async def _wait(self, caller: str) -> None:
        own = self._waiting.get(caller, deque())
        if len(own) >= MOST_WAITING_OF_CALLER or self.waiting >= MOST_WAITING:
            raise _refusal(f"{len(own)} costly requests of this caller wait already")
        turn = asyncio.get_running_loop().create_future()
        own.append(turn)
        self._waiting.setdefault(caller, own)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except TimeoutError:
            self._leave(caller, turn)
            raise _refusal(f"the server was busy with other costly requests for {WAIT_SECONDS:.0f} s") from None
        except asyncio.CancelledError:
            self._leave(caller, turn)
            raise

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Take a request that no longer waits from the queue."""
        own = self._waiting.get(caller, deque())
        if not turn.cancelled():
            self._pass_on()  # the turn came at the same moment
        elif turn in own:
            own.remove(turn)
            if not own:
                del self._waiting[caller]

    def _pass_on(self) -> None:
        while self._waiting:
            caller, own = self._waiting.popitem(last=False)
            turn = own.popleft()
            if own:
                self._waiting[caller] = own
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
        if self._free == self._all:
            sys.setswitchinterval(self._usual_switch)


def _refusal(why: str) -> Unavailable:
    return Unavailable(f"{why}; send fewer at a time", retry_after=random.randint(*RETRY_SECONDS))


_TURNS = web.AppKey("turns", Turns)
A = TypeVar("A")
Answer = Callable[[web.Request], Awaitable[web.Response]]


def set_up(app: web.Application) -> None:
    app[_TURNS] = Turns()


async def in_turn(request: web.Request, answer: Callable[[], Awaitable[web.Response]]) -> web.Response:
    """Make an answer in a turn of the request's caller, as `Turns.make` does."""
    return await request.app[_TURNS].make(f"{request[CLAIMS].subject} {request.remote}", answer)


def costly(answer: Answer) -> Answer:
    """Return a handler that makes its whole answer in a turn."""

    @wraps(answer)
    async def handler(request: web.Request) -> web.Response:
        return await in_turn(request, partial(answer, request))

    return handler
