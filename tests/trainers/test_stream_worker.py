"""The rollout worker of TRL's asynchronous trainer on the real API, with a pool whose rollouts the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rollyard.client import Client
from rollyard.client.advantages import grpo
from rollyard.core.aio import running
from rollyard.core.errors import NoProgress
from rollyard.kinds.batch import BatchRequest, DatasetRef
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutRecord
from tests.api.test_rollouts_waiting import pool
from tests.support.lazy_module import LazyModule
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool

if TYPE_CHECKING:
    from rollyard.trainers import trl
else:
    trl = LazyModule("rollyard.trainers.trl")

pytestmark = [pytest.mark.slow(20), pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")]
REQUEST = BatchRequest(id="s", pool="swe", n=4, dataset=DatasetRef(name="d"), step_groups=2, max_staleness=1)


@asynccontextmanager
async def served(serving: Serve, folder: Path) -> AsyncIterator[Client]:
    """A server with a dataset, whose rollouts end at once: every third sample without a reward."""

    def play(record: RolloutRecord) -> Played:
        failed = record.sample_index == 2
        return Played(reward=float(record.sample_index % 2), status=Status.INFRA_FAILED if failed else Status.COMPLETED)

    async def play_on(api: Api) -> None:
        while True:
            await PlayedPool(api.parts).play(play)
            await asyncio.sleep(0.02)

    async with serving() as api:
        await pool(api)
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "clusters": [{"name": "c", "cluster": {"server": api.url}}],
            "users": [{"name": "u", "user": {"token": api.admin}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        client = await asyncio.to_thread(Client, kubeconfig=folder / "kubeconfig")
        try:
            tasks = [{"kind": "math", "problem": f"{i}+0=?", "answer": str(i)} for i in range(40)]
            await asyncio.to_thread(client.put_dataset, "d", tasks)
            async with running(play_on(api)):
                yield client
        finally:
            await asyncio.to_thread(client.__exit__, None, None, None)


def worker(client: Client) -> trl.StreamWorker:
    nobody_pushes: Any = None
    return trl.StreamWorker(client, REQUEST, trl.WeightTransfer(nobody_pushes))


async def taken(worker: trl.StreamWorker, count: int) -> list[Any]:
    """Take samples; fail as the trainer would if there will be none."""
    while worker.rollout_buffer.qsize() < count:
        await asyncio.to_thread(worker.check_health, 300.0)
        await asyncio.sleep(0.02)
    return [worker.rollout_buffer.get_nowait() for _ in range(count)]


async def waits_on(worker: trl.StreamWorker) -> None:
    """Take all samples, and go on to wait as the trainer does."""
    while True:
        await asyncio.to_thread(worker.check_health, 300.0)
        await taken(worker, worker.rollout_buffer.qsize())
        await asyncio.sleep(0.02)


async def test_a_stream_is_acknowledged_with_each_version_and_goes_on_in_another_process(
    serving: Serve, tmp_path: Path
) -> None:
    async with served(serving, tmp_path) as client:
        first = worker(client)
        await asyncio.to_thread(first.start)
        samples = await taken(first, 7)
        assert [s.group_id for s in samples] == [1, 1, 1, 2, 2, 2, 3], "a rollout without a reward is not a sample"
        assert [s.advantage for s in samples[:3]] == pytest.approx(grpo([0.0, 1.0, 1.0]).tolist())
        assert [s.input_ids.tolist() for s in samples[:1]] == [[1, 2]]
        assert first.metrics_queue.get_nowait()["stream/without_reward"] == 0.25
        assert (await asyncio.to_thread(client.get_batch, "s")).acknowledged == 0, "nothing is trained on yet"
        await asyncio.to_thread(first.update_model_version, 2)
        assert (await asyncio.to_thread(client.get_batch, "s")).acknowledged == 2, "of group 3 samples are left"

        second = worker(client)
        await asyncio.to_thread(second.start)
        assert [s.group_id for s in await taken(second, 3)] == [3, 3, 3]
        await asyncio.to_thread(second.stop)
        await taken(first, first.rollout_buffer.qsize())
        with pytest.raises(NoProgress, match="no more groups from batch 's': it ended Cancelled"):
            await waits_on(first)
        with pytest.raises(NoProgress, match="'s' has ended Cancelled; choose another id"):
            await asyncio.to_thread(worker(client).start)


async def test_a_stream_that_waits_for_a_trainer_that_waits_for_samples_is_acknowledged_early(
    serving: Serve, tmp_path: Path
) -> None:
    """Four groups may be unacknowledged. They have 12 samples; the trainer needs 16 before its first step."""
    async with served(serving, tmp_path) as client:
        hungry = worker(client)
        await asyncio.to_thread(hungry.start)
        await taken(hungry, 12)
        while hungry.rollout_buffer.empty():
            await asyncio.to_thread(hungry.check_health, 300.0)
            await asyncio.sleep(0.02)
        assert (await asyncio.to_thread(client.get_batch, "s")).acknowledged == 4
        await asyncio.to_thread(hungry.stop)
