"""Refused requests for sessions. A request counts as demand until its retry succeeds, or until the request expires."""

from __future__ import annotations

import time

from rollyard.kinds.pool import PoolKey


class UnmetDemand:
    def __init__(self, most: int) -> None:
        """`most`: greatest number of requests for each pool; a further request replaces the oldest."""
        self._most = most
        self._expires_at: dict[PoolKey, dict[str, float]] = {}
        """For each pool: id of a request -> time of its expiry (monotonic seconds), in order of arrival."""

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
