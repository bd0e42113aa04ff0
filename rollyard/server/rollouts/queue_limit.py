"""Limit on the rollouts that wait in a pool's queue: the setting `maxQueuedRollouts` of the pool."""

from __future__ import annotations

import asyncio
from collections import Counter

from rollyard.core.clock import Clock
from rollyard.core.errors import TooManyRequests
from rollyard.kinds.pool import PoolKey
from rollyard.store.rollout_store import RolloutStore

RETRY_SECONDS = 5
RECOUNT_SECONDS = 1.0
"""After a count, the queue is not counted again for at least this many seconds."""
RECOUNT_SHARE = 10
"""If a count took t seconds, the next count begins at least RECOUNT_SHARE * t seconds after its end. RECOUNT_SECONDS
applies if it is longer."""


class QueueLimit:
    """Refuses submits to a full queue. Rollouts of batches do not count: batches limit themselves.

    A count reads the whole queue. So an upper bound is kept: the last count plus all rollouts submitted since then. The
    queue is counted again only if the upper bound reaches the limit, and not soon after the last count.
    """

    def __init__(self, store: RolloutStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._bounds = Counter[PoolKey]()
        self._recount_at: dict[PoolKey, float] = {}
        self._counting = asyncio.Lock()

    async def admit(self, pool: PoolKey, limit: int, rollouts: int) -> None:
        """Add the rollouts of a submit to the upper bound, which may then exceed the limit.

        If the upper bound has already reached the limit, the queue is counted again, unless the last count is too
        recent. Raises TooManyRequests if the upper bound is still not below the limit.
        """
        if pool not in self._recount_at or self._bounds[pool] >= limit:
            async with self._counting:
                await self._count(pool)
        if self._bounds[pool] >= limit:
            raise TooManyRequests(
                f"the queue of RolloutPool {pool.name!r} is full: {limit} rollouts wait; submit again when some have started, "
                "cancel some, or raise `maxQueuedRollouts` of the pool",
                retry_after=RETRY_SECONDS,
            )
        self._bounds[pool] += rollouts

    async def _count(self, pool: PoolKey) -> None:
        began, before = self._clock.time(), self._bounds[pool]
        if began < self._recount_at.get(pool, began):
            return
        counted = await self._store.count_queued(pool)
        self._bounds[pool] += counted - before  # keeps the rollouts that were submitted during the count
        now = self._clock.time()
        self._recount_at[pool] = now + max(RECOUNT_SECONDS, RECOUNT_SHARE * (now - began))
