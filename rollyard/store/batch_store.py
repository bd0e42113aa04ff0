"""Batches and datasets: their transactions and queries, and the deletion of those that a trainer no longer needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rollyard.kinds.pool import PoolKey
from rollyard.store import batch_pruning
from rollyard.store.batch_pruning import GroupRows
from rollyard.store.batch_queries import BatchQueries
from rollyard.store.batch_transaction import BatchTransaction
from rollyard.store.read_connections import Readers, ReadingStore, reading
from rollyard.store.writer import Writer

T = TypeVar("T")
PRUNED_BATCHES = 500
DELETED_GROUPS = 16
"""Greatest number of groups whose rollouts one transaction deletes."""


class BatchStore(ReadingStore[BatchQueries]):
    def __init__(self, readers: Readers, writer: Writer) -> None:
        super().__init__(readers, BatchQueries)
        self._writer = writer

    async def transact(self, change: Callable[[BatchTransaction], T]) -> T:
        """Run a change that needs no rollouts, as `RolloutStore.transact` does."""
        return await self._writer.call(lambda unit: change(BatchTransaction(unit.db)))

    batch_with_series = reading(BatchQueries.batch_with_series)
    list_batches = reading(BatchQueries.list_batches)
    running = reading(BatchQueries.running)
    delivered = reading(BatchQueries.delivered)
    dataset = reading(BatchQueries.dataset)
    list_datasets = reading(BatchQueries.list_datasets)
    histories = reading(BatchQueries.histories)
    training_steps = reading(BatchQueries.training_steps)
    tasks = reading(BatchQueries.tasks)
    reward_means = reading(BatchQueries.reward_means)

    async def prune_acknowledged(self, before: float) -> int:
        """Delete the groups that were acknowledged before this time (Unix seconds), with their rollouts; return the
        number of deleted rollouts."""
        return await self._prune_groups(partial(batch_pruning.acknowledged_before, at=before, limit=DELETED_GROUPS))

    async def prune(self, end_of_life: Callable[[PoolKey], float]) -> int:
        """Delete the batches that ended before the time that `end_of_life` returns for their pool, with their delivered
        groups; return the number of deleted rollouts. `end_of_life`: as in `RolloutStore.prune`.

        A series that only the deleted batch can use is deleted, with the tasks that no other series or dataset uses.
        """
        pruned = 0
        for pool in await self.readers.call(batch_pruning.pools_with_batches):
            old = partial(batch_pruning.ended_before, pool=pool, at=end_of_life(pool), limit=PRUNED_BATCHES)
            while batches := await self.readers.call(old):
                for batch in batches:
                    delivered = partial(batch_pruning.delivered_groups, key=batch.key, limit=DELETED_GROUPS)
                    pruned += await self._prune_groups(delivered)
                    while not await self._writer.call(partial(batch_pruning.delete_batch, batch=batch)):
                        pass  # one call deletes only some of the tasks, so that other writes can run between two calls
        return pruned

    async def _prune_groups(self, find: Callable[[sqlite3.Connection], GroupRows]) -> int:
        pruned = 0
        while groups := await self.readers.call(find):
            pruned += await self._writer.call(partial(batch_pruning.delete_groups, groups=groups))
        return pruned
