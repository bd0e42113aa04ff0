"""Requests for sessions that were refused. They count as demand until they are repeated or expire."""

from __future__ import annotations

import time

from rollyard.kinds.pool import PoolKey


class UnmetDemand:
    def __init__(self, most: int) -> None:
        """`most`: limit for each pool; a further request replaces the oldest one."""
        self._most = most
        self._expires_at: dict[PoolKey, dict[str, float]] = {}
        """Id -> expiry (monotonic seconds), for each pool, in order of arrival."""

    def add(self, pool: PoolKey, id: str, seconds: float) -> None:
        expiries = self._expires_at.setdefault(pool, {})
        expiries.pop(id, None)
        expiries[id] = time.monotonic() + seconds
        while len(expiries) > self._most:
            del expiries[next(iter(expiries))]

    def drop(self, pool: PoolKey, id: str) -> None:
        self._expires_at.get(pool, {}).pop(id, None)

    def count(self, pool: PoolKey) -> int:
        now, expiries = time.monotonic(), self._expires_at.get(pool, {})
        for id in [id for id, until in expiries.items() if until <= now]:
            del expiries[id]
        if not expiries:
            self._expires_at.pop(pool, None)
        return len(expiries)
