"""One sandbox for each trajectory that is not finished."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from rollyard.core.errors import SandboxError, SandboxStartFailed, Unavailable
from rollyard.sandbox.sandbox import Sandbox


@dataclass
class _Held:
    sandbox: asyncio.Task[Sandbox]
    calls: int = 0
    last_call: float = field(default_factory=time.monotonic)


class TrajectorySandboxes:
    """Sandboxes by trajectory id. Each starts with its first use and ends when it is finished, lost, or idle."""

    def __init__(self, start: Callable[[], Awaitable[Sandbox]], limit: int, idle_seconds: float) -> None:
        """`limit`: sandboxes at the same time."""
        self._start, self._limit, self._idle_seconds = start, limit, idle_seconds
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @contextlib.asynccontextmanager
    async def use(self, trajectory: str) -> AsyncIterator[Sandbox]:
        """Yield the trajectory's sandbox. Raises Unavailable if there are too many, and SandboxError; after a SandboxError
        the next use starts another sandbox."""
        held = self._held.get(trajectory)
        if held is None:
            if len(self._held) >= self._limit:
                raise Unavailable(f"all {self._limit} sandboxes are in use; finish trajectories, or raise --sandboxes")
            held = self._held[trajectory] = _Held(asyncio.create_task(self._started()))
        held.calls += 1
        try:
            yield await asyncio.shield(held.sandbox)
        except SandboxError:
            await self._end(trajectory, held)
            raise
        finally:
            held.calls -= 1
            held.last_call = time.monotonic()

    async def finish(self, trajectory: str) -> None:
        """End the trajectory's sandbox, if it has one."""
        if held := self._held.get(trajectory):
            await self._end(trajectory, held)

    async def end_idle_ones(self) -> None:
        """End sandboxes that are not used for `idle_seconds`. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(self._idle_seconds / 4, 10.0))
            for trajectory, held in list(self._held.items()):
                if not held.calls and time.monotonic() - held.last_call > self._idle_seconds:
                    await self._end(trajectory, held)

    async def _started(self) -> Sandbox:
        try:
            return await self._start()
        except OSError as error:  # too many open files or processes
            raise SandboxStartFailed(f"no sandbox could be started: {error}") from None

    async def _end(self, trajectory: str, held: _Held) -> None:
        if self._held.get(trajectory) is held:
            del self._held[trajectory]
        with contextlib.suppress(SandboxError):  # it never started
            await (await asyncio.shield(held.sandbox)).close()
