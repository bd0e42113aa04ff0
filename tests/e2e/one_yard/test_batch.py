"""A batch over real sandboxes and a real policy."""

from __future__ import annotations

import asyncio
import random

import pytest

from examples.tiny_policy.families import sample_code
from rollyard.client import AsyncClient
from rollyard.kinds.batch import BatchFilter, BatchRequest, BatchStatus, DatasetRef
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_batch_over_real_sandboxes_and_a_real_policy(served: tuple[Yard, AsyncClient]) -> None:
    _, client = served
    rng = random.Random(7)
    await client.put_dataset("held-out", [sample_code(rng, True) for _ in range(6)])
    request = BatchRequest(
        pool="demo", n=2, target=2, dataset=DatasetRef(name="held-out"), filter=BatchFilter(kind="none")
    )
    async with asyncio.timeout(300):
        groups = [group async for group in client.batch(request)]
    assert [g.delivery for g in groups] == [1, 2]
    for rollout in (r for g in groups for r in g.rollouts):
        assert rollout.status.scored
        assert sum(sum(s.loss_mask) for s in rollout.segments) > 0
    (view,) = await client.batches()
    assert view.status is BatchStatus.COMPLETED
