"""A queue is full at its limit, and is counted only then."""

from __future__ import annotations

import pytest

from rollyard.core.errors import TooManyRequests
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest
from rollyard.server.rollouts import queue_limit
from rollyard.server.rollouts.queue_limit import RECOUNT_SECONDS, QueueLimit
from rollyard.store.rollout_store import RolloutStore
from tests.server.batches.conftest import Site, task
from tests.server.batches.conftest import site as site

POOL = PoolKey("default", "swe")


def request(id: str, n: int = 1) -> RolloutRequest:
    return RolloutRequest(id=id, pool="swe", task=task(0), n=n)


async def test_a_queue_is_counted_without_batches_and_only_at_its_limit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, counts, count = QueueLimit(site.store.rollouts, site.clock), 0, RolloutStore.count_queued

    async def counting(store: RolloutStore, key: PoolKey) -> int:
        nonlocal counts
        counts += 1
        return await count(store, key)

    monkeypatch.setattr(RolloutStore, "count_queued", counting)
    await site.create(id="b", tasks=[task(n).model_dump() for n in range(10)], filter={"kind": "none"}, target=10)
    for n in range(5):
        await limit.admit(POOL, 10, 2)
        await site.rollouts.submit("default", [request(f"r{n}", n=2)])
    assert counts == 1
    with pytest.raises(TooManyRequests, match="'swe' is full: 10 rollouts wait; submit again when some have started"):
        await limit.admit(POOL, 10, 1)
    site.clock.turn(RECOUNT_SECONDS)
    with pytest.raises(TooManyRequests) as refused:
        await limit.admit(POOL, 10, 1)
    assert refused.value.retry_after == queue_limit.RETRY_SECONDS
    assert counts == 2
    await site.rollouts.cancel("default", "r0.0")
    with pytest.raises(TooManyRequests):
        await limit.admit(POOL, 10, 1)
    assert counts == 2, "not again within a second"
    site.clock.turn(RECOUNT_SECONDS)
    await limit.admit(POOL, 10, 7)
    assert counts == 3
    await limit.admit(PoolKey("default", "other"), 10, 7)
