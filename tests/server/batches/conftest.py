from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from rollyard.kinds.batch import BatchKey, BatchRequest, BatchView
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.store import Store
from tests.support.manual_clock import ManualClock
from tests.support.played_pool import PlayedPool


def task(number: int) -> Task:
    return Task.model_validate({"kind": "math", "problem": f"{number} + 0 = ?", "answer": str(number)})


class Site:
    """A server's parts on a real store, a clock that the test turns, and a pool that the test plays."""

    def __init__(self, parts: Parts, clock: ManualClock) -> None:
        self.parts, self.clock = parts, clock
        self.batches, self.rollouts, self.store = parts.batches, parts.rollouts, parts.store
        self.pool = PlayedPool(parts)

    async def declare_pool(self) -> None:
        """Store the pool, which a batch without one ends with."""
        await self.store.objects.create(
            RolloutPool.model_validate({"metadata": {"name": "swe"}, "spec": {"replicas": 1}})
        )

    async def dataset(self, name: str, tasks: int) -> None:
        lines = [task(number).canonical() for number in range(tasks)]
        await self.batches.put_dataset("default", name, lines, {"math"})

    async def create(self, **fields: Any) -> BatchView:
        request = BatchRequest.model_validate({"pool": "swe", "n": 2, **fields})
        view, _ = await self.batches.create("default", request, [t.canonical() for t in request.tasks or ()])
        return view

    async def view(self, id: str) -> BatchView:
        return await self.batches.view(BatchKey("default", id))


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    parts = Parts(store, LocalDriver(tmp_path / "slurm"), tmp_path, clock)
    yield Site(parts, clock)
    await parts.close()
    await store.close()
