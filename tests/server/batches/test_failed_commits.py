"""A disk that fails at any commit: a transaction of a batch happens as a whole or not at all."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from rollyard.core.errors import Unavailable
from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.store.base import RolloutFilter
from rollyard.store.batch_records import GroupState
from rollyard.store.blobs import PackWriter
from tests.server.batches.conftest import Site
from tests.support.played_pool import Played

BATCHES, TARGET, TASKS = 6, 3, 60


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_half_done(site: Site, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng, sync, failing = random.Random(seed), PackWriter.sync, False

    def unreliable(self: PackWriter) -> None:
        if failing and rng.random() < 0.3:
            raise OSError(28, "No space left on device")
        sync(self)

    monkeypatch.setattr(PackWriter, "sync", unreliable)
    await site.dataset("d", TASKS)
    failing = True
    for number in range(BATCHES):
        request: dict[str, Any] = {"id": f"b{number}", "dataset": {"name": "d"}, "target": TARGET, "n": 3}
        while True:
            with contextlib.suppress(Unavailable):
                await site.create(**request)
                break
        while not (await site.view(f"b{number}")).status.terminal:
            await _play_some(site, rng)
    failing = False
    for number in range(BATCHES):
        groups = await site.store.batches.delivered(BatchKey("default", f"b{number}"), 0, 100)
        view = await site.view(f"b{number}")
        assert view.status is BatchStatus.COMPLETED
        assert [g.delivery for g in groups] == [1, 2, 3]
        assert all(g.all_ended and g.state is GroupState.DELIVERED for g in groups)
    records = await site.rollouts.find(RolloutFilter(limit=5000))
    numbers = Counter(int(str(r.group).rpartition("-g")[2]) for r in records)
    assert sorted(numbers) == list(range(len(numbers))), "no group was drawn without its rollouts"
    assert set(numbers.values()) == {3}
    tasks = Counter(RolloutRequest.model_validate_json(r.request).task.fields["answer"] for r in records)
    assert set(tasks.values()) == {3}, "no task is drawn twice within an epoch"


async def _play_some(site: Site, rng: random.Random) -> None:
    for record in await _leased(site):
        while True:
            reward = float(rng.random() < 0.5)
            with contextlib.suppress(Unavailable):
                if (await site.rollouts.get("default", record.id)).status is Status.RUNNING:
                    await site.pool.finish(record, Played(reward))
                break


async def _leased(site: Site) -> list[Any]:
    with contextlib.suppress(Unavailable):
        return await site.pool.lease(5)
    return []
