"""Requests for sessions that were refused: they count as demand until they are repeated or expire."""

from __future__ import annotations

import time

from rollyard.gateway.external.routed_sampler import PoolKey


class UnmetDemand:
    def __init__(self, most: int) -> None:
        """`most`: limit for one pool; a further request replaces the oldest."""
        self._most = most
        self._expires_at: dict[PoolKey, dict[str, float]] = {}
        """Id -> expiry in order of arrival (monotonic seconds), for each pool."""

    def add(self, pool: PoolKey, id: str, seconds: float) -> None:
        wishes = self._expires_at.setdefault(pool, {})
        wishes.pop(id, None)
        wishes[id] = time.monotonic() + seconds
        while len(wishes) > self._most:
            del wishes[next(iter(wishes))]

    def drop(self, pool: PoolKey, id: str) -> None:
        self._expires_at.get(pool, {}).pop(id, None)

    def count(self, pool: PoolKey) -> int:
        now, wishes = time.monotonic(), self._expires_at.get(pool, {})
        for id in [id for id, until in wishes.items() if until <= now]:
            del wishes[id]
        if not wishes:
            self._expires_at.pop(pool, None)
        return len(wishes)
