"""How long a result stays is its pool's setting."""

from __future__ import annotations

from pathlib import Path

from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_pool import DEFAULT_TTL_SECONDS
from rollyard.server.rollouts.result_pruner import ResultPruner
from rollyard.store.base import RolloutFilter
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from tests.support.make import rollout, rollout_pool
from tests.support.manual_clock import ManualClock


async def test_an_artifact_may_have_a_shorter_time_to_live(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    await store.objects.create(rollout_pool("short", artifactTtlSecondsAfterFinished=60))
    await store.objects.create(rollout_pool("usual"))

    def put(tx: Transaction) -> None:
        for pool in ("short", "usual", "gone"):
            blob = tx.add_blob(pool.encode())
            tx.put(
                rollout(
                    pool, pool=pool, status=Status.COMPLETED, stage=Stage.EVAL, reward=1.0, finished_at=clock.time(),
                    result=blob, artifact=blob,
                )
            )  # fmt: skip

    await store.rollouts.transact(put)
    pruner = ResultPruner(store, clock)

    async def deleted() -> list[str]:
        return [record.id for record in await store.rollouts.list_rollouts(RolloutFilter()) if record.artifact_deleted]

    clock.turn(59.0)
    await pruner.prune()
    assert await deleted() == []
    clock.turn(2.0)
    assert await pruner.prune() == 0
    assert await deleted() == ["short"]
    await store.close()


async def test_each_pool_has_its_own_time_to_live(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    await store.objects.create(rollout_pool("short", ttlSecondsAfterFinished=60))
    await store.objects.create(rollout_pool("usual"))
    await store.objects.create(rollout_pool("ever", ttlSecondsAfterFinished=10**10))
    for pool in ("short", "usual", "ever", "gone", "last"):
        ended = rollout(pool, pool=pool, status=Status.COMPLETED, reward=1.0, finished_at=clock.time())
        await store.rollouts.transact(lambda tx, ended=ended: tx.put(ended))  # type: ignore[misc]
    pruner = ResultPruner(store, clock)

    async def there() -> list[str]:
        return [record.id for record in await store.rollouts.list_rollouts(RolloutFilter())]

    clock.turn(59.0)
    assert await pruner.prune() == 0
    clock.turn(2.0)
    assert await pruner.prune() == 1
    assert await there() == ["usual", "ever", "gone", "last"]
    clock.turn(DEFAULT_TTL_SECONDS)
    assert await pruner.prune() == 2
    assert await there() == ["ever", "last"], "the newest of all stays"
    await store.close()
