"""Rollouts: their transactions and queries, and the deletion of old ones and of old artifacts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from rollyard.kinds.pool import PoolKey
from rollyard.store import pruning
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.read_connections import Readers, ReadingStore, reading
from rollyard.store.rollout_queries import RolloutQueries
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.writer import Writer, WriteUnit

T = TypeVar("T")


class RolloutStore(ReadingStore[RolloutQueries]):
    def __init__(self, readers: Readers, writer: Writer) -> None:
        super().__init__(readers, RolloutQueries)
        self._writer = writer

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in the writer; return its result after its writes are on disk.

        An exception of `change` undoes all writes of `change`, and only this caller gets the exception. Raises
        Unavailable if the disk is full or fails, or if the store is closed, and Superseded if another server has the
        data folder. Nothing is written then.
        """
        return await self._writer.call(lambda unit: change(Transaction(unit)))

    async def list_rollouts(self, filter: RolloutFilter) -> list[RolloutRecord]:
        """Return records in order of arrival, or as the search sorts them."""
        return await self.readers.call(lambda db: self.queries(db).list_rollouts(filter), costly=filter.is_costly)

    async def finished(
        self, after: int, limit: int, namespace: str | None = None, group: str | None = None, upto: int | None = None
    ) -> list[RolloutRecord]:
        """Return terminal records after this cursor, as `RolloutQueries.finished` does. With `upto` the caller reads all
        of the past, and shares the connections of costly queries."""
        query = partial(RolloutQueries.finished, after=after, limit=limit, namespace=namespace, group=group, upto=upto)
        return await self.readers.call(lambda db: query(self.queries(db)), costly=upto is not None)

    get = reading(RolloutQueries.get)
    snapshots = reading(RolloutQueries.snapshots)
    saved_turns = reading(RolloutQueries.saved_turns)
    all_resume_totals = reading(RolloutQueries.all_resume_totals)
    some_saved_turns = reading(RolloutQueries.some_saved_turns)
    summarize = reading(RolloutQueries.summarize, costly=True)
    work = reading(RolloutQueries.work, costly=True)
    count = reading(RolloutQueries.count, costly=True)
    ends_by_node = reading(RolloutQueries.ends_by_node, costly=True)
    losing_histories = reading(RolloutQueries.losing_histories, costly=True)
    newest_seq = reading(RolloutQueries.newest_seq)
    newest_cursor = reading(RolloutQueries.newest_cursor)
    counts = reading(RolloutQueries.counts)
    reward_mean = reading(RolloutQueries.reward_mean)
    usage_since = reading(RolloutQueries.usage_since, costly=True)
    count_queued = reading(RolloutQueries.count_queued)
    count_checks = reading(RolloutQueries.count_checks)
    queue_places = reading(RolloutQueries.queue_places)
    missing_images = reading(RolloutQueries.missing_images)
    needs_of_missing_images = reading(RolloutQueries.needs_of_missing_images)
    count_without_image = reading(RolloutQueries.count_without_image)
    queued_images = reading(RolloutQueries.queued_images)
    images_needed = reading(RolloutQueries.images_needed)

    async def prune(self, end_of_life: Callable[[PoolKey], float]) -> int:
        """Delete old rollouts; return how many. `counts` without a group still includes the deleted rollouts.

        `end_of_life`: function that returns a time for a pool (Unix seconds). The pool's rollouts that ended before this
        time are deleted. The rollouts of groups that a batch has delivered or may still deliver stay. `BatchStore`
        deletes those of delivered groups.
        """
        pruned = 0
        for pool in await self.readers.call(pruning.pools_with_ended):
            old = partial(pruning.ended_before, pool=pool, at=end_of_life(pool), limit=pruning.DELETED_ROWS)
            pruned += await self._prune(old, lambda rows: partial(pruning.delete_ended, rows=rows))
        return pruned

    async def prune_artifacts(self, ends_of_life: Mapping[PoolKey, float]) -> int:
        """Delete the artifacts of these pools' rollouts that ended before a time (Unix seconds); return how many. The
        records and trajectories stay."""
        pruned = 0
        for pool, at in ends_of_life.items():
            old = partial(pruning.artifacts_before, pool=pool, at=at, limit=pruning.DELETED_ROWS)
            pruned += await self._prune(old, lambda rows: partial(pruning.delete_artifacts, rows=rows))
        return pruned

    async def _prune(
        self,
        find: Callable[[sqlite3.Connection], list[int]],
        deletion: Callable[[Sequence[int]], Callable[[WriteUnit], int]],
    ) -> int:
        pruned = 0
        while rows := await self.readers.call(find):
            pruned += await self._writer.call(deletion(rows))
        return pruned
