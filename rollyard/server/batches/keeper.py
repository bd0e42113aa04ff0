"""The keeper of running batches: sends a tick to each batch that needs one. A tick contains the time and the batch's
slots. When a rollout ends, its batch is updated without the keeper."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.errors import Invalid, NotFound, Unavailable
from rollyard.kinds.batch import BatchKey, BatchRequest
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.batches.advance import wanted
from rollyard.server.batches.service import BatchService
from rollyard.server.batches.settlement import parsed_request
from rollyard.store.batch_records import BatchRecord
from rollyard.store.batch_store import BatchStore

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0


class BatchKeeper:
    """Sends a tick to each running batch that needs one, once a second and after `wake`."""

    def __init__(
        self,
        store: BatchStore,
        clock: Clock,
        batches: BatchService,
        slots: Callable[[PoolKey], int],
        pools: Callable[[], Awaitable[Sequence[RolloutPool]]],
    ) -> None:
        """`slots`: returns the number of rollouts that a pool's node agents can work on. Running batches of a pool share
        this number in proportion to their weights."""
        self._store = store
        self._clock = clock
        self._batches = batches
        self._slots = slots
        self._pools = pools
        self.waker = Waker()
        """Wakes the keeper, because the width of a pool has changed."""

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            try:
                await self.tick()
            except Unavailable as error:
                log.error("running batches were not moved on: %s", error)
            await self.waker.pause(TICK_SECONDS)

    async def tick(self) -> None:
        """Store tasks of plug-ins before they are drawn, cancel batches of deleted pools, and send a tick to every
        batch that needs one."""
        running = await self._store.running()
        if not running:
            return
        pools = {p.pool_key for p in await self._pools() if p.metadata.deletion_timestamp is None}
        weights: defaultdict[PoolKey, float] = defaultdict(float)
        requests = [parsed_request(batch.request) for batch in running]
        for batch, request in zip(running, requests, strict=True):
            weights[batch.pool_key] += request.weight
        for batch, request in zip(running, requests, strict=True):
            pool = batch.pool_key
            slots = math.ceil(self._slots(pool) * request.weight / weights[pool] - 1e-9)
            try:
                if pool not in pools:
                    await self._batches.cancel(batch.key, keep=False)
                    continue
                if request.source is not None:
                    await self._feed(batch.key)
                if needs_tick(request, batch, self._clock.time(), slots):
                    await self._batches.tick(batch.key, slots)
            except NotFound:
                continue

    async def _feed(self, key: BatchKey) -> None:
        errors = self._batches.source_errors
        try:
            await self._batches.feed(key)
            errors.pop(key, None)
        except Invalid as error:
            if errors.get(key) != str(error):  # log each error once
                log.error("batch %s/%s: %s", *key, error)
            errors[key] = str(error)


def needs_tick(request: BatchRequest, batch: BatchRecord, at: float, slots: int) -> bool:
    """Whether a tick would change the batch. Without this check most ticks would cost a useless write."""
    expired = request.deadline_seconds is not None and at >= batch.created_at + request.deadline_seconds
    return expired or slots != batch.slots or wanted(request, batch) > 0
