"""A queue of keys. Each key waits at most once, and two workers never have the same key at the same time.

If a key is added while a worker has it, the key waits again when the worker is done. So no change is missed (client-go,
util/workqueue).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_SECONDS = 0.05
CAP_SECONDS = 60.0
_MOST_DOUBLINGS = 32


class WorkQueue(Generic[K]):
    """Queue for one event loop. Other threads must not call it."""

    def __init__(self, base_seconds: float = BASE_SECONDS, cap_seconds: float = CAP_SECONDS) -> None:
        self._base = base_seconds
        self._cap = cap_seconds
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Queue the key. For a key that waits already, nothing changes."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key after this delay. If several delays run for a key, the one that ends first counts."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._add_due, key)

    def retry(self, key: K) -> float:
        """Queue the key after a random wait. Return the seconds of the wait.

        The limit of the wait doubles with each failure of the key, up to `cap_seconds`. Full jitter (Brooker,
        "Exponential Backoff And Jitter") spreads keys that failed together.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = random.uniform(0, min(self._cap, self._base * 2 ** min(failures, _MOST_DOUBLINGS)))
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Reset the number of the key's failures."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key. The key belongs to the caller until `done`."""
        key = await self._ready.get()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Give the key back. If the key was added since `get`, queue it again."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.put_nowait(key)

    def close(self) -> None:
        """Cancel all delayed additions."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def __len__(self) -> int:
        """Return the number of keys that wait."""
        return self._ready.qsize()

    def _add_due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)
