"""Batches on a real server that is killed at any moment."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rollyard.kinds.batch import BatchRequest, BatchStatus, DatasetRef, Group
from rollyard.kinds.rollout import Status
from rollyard.server.store.batch_records import GroupState
from rollyard.wire.node import Lease
from tests.support.null_node import null_pool
from tests.support.stored_groups import stored_groups
from tests.support.storm import Storm
from tests.support.until import until
from tests.support.yard import Yard

pytestmark = pytest.mark.slow(30)
TASKS, BATCHES, TARGET, N = 120, 6, 6, 4


def reward(lease: Lease) -> float:
    """Every third task is uniform; the others are informative."""
    return float(lease.sample_index % 2) if int(lease.task.fields["answer"]) % 3 else 1.0


async def test_a_server_killed_at_any_moment_repeats_no_task_and_delivers_no_group_twice(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, long_run: bool
) -> None:
    delivered: dict[str, list[Group]] = {}
    storm = Storm(yard, seed=3, pause=(0.0, 1.2), most=12 if long_run else 6, victims=["server"])

    async def train() -> None:
        async with yard.client() as client:
            for number in range(BATCHES):
                if number == BATCHES - 1:  # a fast machine is here before the storm has begun in earnest
                    await until(lambda: storm.killed["server"] >= 3)
                request = BatchRequest(
                    id=f"step-{number}", pool="null", n=N, target=TARGET, dataset=DatasetRef(name="d", seed=5), epochs=1
                )
                batch = client.batch(request)
                delivered[batch.id] = []
                async for group in batch:
                    delivered[batch.id].append(group)
                assert batch.view is not None
                assert batch.view.status in (BatchStatus.COMPLETED, BatchStatus.EXHAUSTED)
                assert (await client.create_batch(request)).status is batch.view.status, "the same id attaches"

    async with yard.client() as client, null_pool(yard, client, reward, monkeypatch):
        tasks = [{"kind": "math", "problem": f"{i}+0=?", "answer": str(i)} for i in range(TASKS)]
        await client.put_dataset("d", tasks)
        async with asyncio.timeout(600), storm:
            await train()
        assert storm.killed["server"] >= 3
        ids = [group.id for groups in delivered.values() for group in groups]
        assert len(ids) == len(set(ids))
        for groups in delivered.values():
            assert [g.delivery for g in groups] == list(range(1, len(groups) + 1))
            assert all(g.rewards == [0.0, 1.0] * (N // 2) for g in groups)
            assert all(r.status is Status.COMPLETED for g in groups for r in g.rollouts)
        assert [len(groups) for groups in delivered.values()] == [TARGET] * BATCHES
    yard.stop()
    drawn = await stored_groups(yard.data, "d")
    ended = [g for g in drawn if g.state is GroupState.DELIVERED]
    assert len(ended) == TARGET * BATCHES
    assert all(len(g.ended) == N for g in ended)
    assert max(Counter((g.epoch, g.task_index) for g in drawn).values()) == 1, "no task twice in an epoch"
    assert [g.number for g in drawn] == list(range(len(drawn))), "no group without a number, no number without a group"
