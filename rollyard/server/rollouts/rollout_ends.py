"""Ends of rollouts: their metrics, and the requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from rollyard.core.aio import wait_or_timeout
from rollyard.core.telemetry import REWARD, REWARDS, ROLLOUT_STAGE_SECONDS, ROLLOUTS_FINISHED, ROLLOUTS_UNSCORED, child
from rollyard.kinds.failure_table import ENDINGS
from rollyard.kinds.rollout import CHECK, RolloutKey
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_store import RolloutStore

MOST_AT_ONCE = 200
REASONS = frozenset(row.reason for row in ENDINGS.values())


class RolloutEnds:
    def __init__(self, store: RolloutStore, get: Callable[[str, str], Awaitable[RolloutRecord]]) -> None:
        """`get`: returns the record of a namespace and id. Raises NotFound."""
        self._store = store
        self._get = get
        self._ended = asyncio.Event()
        self._waiting: dict[RolloutKey, set[asyncio.Event]] = {}

    async def wait(self, namespace: str, id: str, seconds: float) -> RolloutRecord:
        """Wait until the record is terminal, but at most for `seconds`; return the record. Raises NotFound."""
        event, key = asyncio.Event(), RolloutKey(namespace, id)
        waiting = self._waiting.setdefault(key, set())
        waiting.add(event)  # before the read, so that no end is missed
        try:
            record = await self._get(namespace, id)
            if record.status.terminal or seconds <= 0:
                return record
            await wait_or_timeout(event, seconds)
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        return await self._get(namespace, id)

    async def stream(
        self,
        after: int,
        namespace: str,
        group: str | None,
        pool: str | None,
        idle_seconds: float,
        *,
        upto: int | None = None,
    ) -> AsyncIterator[Sequence[RolloutRecord]]:
        """Yield terminal records after this cursor, without checks, as many at a time as there are, up to MOST_AT_ONCE: for
        ever, or up to the cursor `upto`. Yield none whenever `idle_seconds` pass without a record."""
        loop = asyncio.get_running_loop()
        due = loop.time() + idle_seconds
        while True:
            ended = self._ended
            rows = await self._store.finished(after, MOST_AT_ONCE, namespace, group, upto)
            found = [record for record in rows if record.mode != CHECK and pool in (None, record.pool)]
            if found or loop.time() >= due:  # due also after rows that yield nothing
                yield found
                due = loop.time() + idle_seconds
            if rows:
                assert rows[-1].cursor is not None
                after = rows[-1].cursor
            else:
                if upto is not None:
                    return
                await wait_or_timeout(ended, due - loop.time())

    def note(self, record: RolloutRecord) -> None:
        """Count an ended rollout in the metrics, and wake the requests that wait for its end, or for any."""
        pool = record.pool_key
        child(ROLLOUTS_FINISHED, record.status.value).inc()
        if record.error is not None:
            reason = record.error.reason if record.error.reason in REASONS else "Other"
            child(ROLLOUTS_UNSCORED, *pool, reason).inc()
        if record.mode != CHECK and record.reward is not None:
            child(REWARD, *pool, record.task_kind).observe(record.reward)
            if record.reward > 0:
                child(REWARDS, *pool, "suspicious" if record.suspicious else "none").inc()
        for stage in ("init", "run", "eval"):
            if isinstance(seconds := record.summary.get(stage), int | float):
                child(ROLLOUT_STAGE_SECONDS, stage).observe(seconds)
        self._ended.set()
        self._ended = asyncio.Event()
        for event in self._waiting.get(record.key, ()):
            event.set()
