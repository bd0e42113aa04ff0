"""Deletes acknowledged rollouts, and rollouts, artifacts and batches that have outlived their time to live. Frees the space
of deleted results."""

from __future__ import annotations

import asyncio
import logging

from rollyard.core.clock import Clock
from rollyard.core.errors import Unavailable
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import DEFAULT_TTL_SECONDS, RolloutPool
from rollyard.store.store import Store

log = logging.getLogger(__name__)

PRUNE_SECONDS = 60.0
RECLAIM_SECONDS = 600.0
"""Seconds between two attempts to free space. An attempt is costly, because it may read all records."""
ACKNOWLEDGED_SECONDS = 3600.0
"""Seconds for which an acknowledged group is kept. The trainer may restart from a checkpoint that is older than the
acknowledgement."""
UNUSED_PACK_SECONDS = 86_400.0
"""Seconds for which a pack (a file with results) is kept although no record names it any more. So a database that is
restored from a backup of at most this age still finds all its results."""


class ResultPruner:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Prune every PRUNE_SECONDS, until cancelled."""
        loop = asyncio.get_running_loop()
        reclaim_at = loop.time()
        while True:
            try:
                await self.prune()
                if loop.time() >= reclaim_at:
                    reclaim_at = loop.time() + RECLAIM_SECONDS
                    await self._store.packs.reclaim(UNUSED_PACK_SECONDS)
            except Unavailable as error:
                log.warning("old results were not deleted this time: %s", error)
            await asyncio.sleep(PRUNE_SECONDS)

    async def prune(self) -> int:
        """Delete rollouts that were acknowledged more than ACKNOWLEDGED_SECONDS ago, or whose time to live has passed,
        old batches, and artifacts whose own time to live has passed.

        Return the number of deleted rollouts, including those of deleted batches.
        """
        pools, _ = await self._store.objects.list_objects(RolloutPool.__name__)
        specs = {p.pool_key: p.spec for p in pools if isinstance(p, RolloutPool)}
        lives = {key: spec.ttl_seconds_after_finished for key, spec in specs.items()}
        artifacts = {key: spec.artifact_ttl_seconds_after_finished for key, spec in specs.items()}
        now = self._clock.time()

        def end_of_life(pool: PoolKey) -> float:
            return now - lives.get(pool, DEFAULT_TTL_SECONDS)  # a deleted pool has the default

        pruned = await self._store.rollouts.prune(end_of_life)
        pruned += await self._store.batches.prune_acknowledged(now - ACKNOWLEDGED_SECONDS)
        pruned += await self._store.batches.prune(end_of_life)
        await self._store.rollouts.prune_artifacts(
            {key: now - ttl for key, ttl in artifacts.items() if ttl is not None}
        )
        if pruned:
            log.info("deleted %d rollouts that were acknowledged, or had outlived their time to live", pruned)
        return pruned
