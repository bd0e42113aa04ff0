"""Batches on a real server that is killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from rollyard.kinds.batch import BatchRequest, BatchStatus, DatasetRef
from rollyard.kinds.rollout import Status
from rollyard.server.batches.draw import place
from rollyard.store.batch_records import GroupState
from rollyard.trajectory.group import Group
from rollyard.wire.node import Lease
from tests.support.null_node import null_pool
from tests.support.stored_groups import stored_groups
from tests.support.storm import Storm
from tests.support.until import until
from tests.support.yard import ROOT, Yard

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


def seconds(lease: Lease) -> float:
    return int(lease.task.fields["answer"]) / 100


async def killed_again_and_again(request: BatchRequest, yard: Yard, folder: Path, most: int) -> int:
    """Run a trainer to the end of its epochs; return how often it was killed in the middle of a step."""
    words = ["-m", "tests.support.step_trainer", yard.data / "admin.kubeconfig", folder, request.model_dump_json()]
    rng, killed, seen = random.Random(5), 0, folder / "seen"
    while True:
        before = seen.stat().st_size if seen.exists() else 0
        trainer = await asyncio.create_subprocess_exec(sys.executable, *map(str, words), cwd=ROOT)

        def is_at_work(trainer: asyncio.subprocess.Process = trainer, before: int = before) -> bool:
            return trainer.returncode is not None or (seen.exists() and seen.stat().st_size > before)

        await until(is_at_work)
        if killed < most:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            with contextlib.suppress(ProcessLookupError):
                trainer.kill()
        if await trainer.wait() == 0:
            return killed
        assert trainer.returncode == -9
        killed += 1


async def test_each_epoch_has_each_task_once_while_server_and_trainer_are_killed_in_the_middle_of_a_step(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_run: bool
) -> None:
    """The number of tasks is not a multiple of a step's groups, and the longer a task the higher its number."""
    count, kills = (200, 20) if long_run else (50, 3)
    series = [("d", 5, count, "first"), ("d", 6, count, "other-seed"), ("short", 5, count // 3, "short")]
    storm = Storm(yard, seed=4, pause=(0.2, 1.5), most=kills, victims=["server"])
    async with yard.client() as client, null_pool(yard, client, lambda lease: 1.0, monkeypatch, seconds):
        tasks = [{"kind": "math", "problem": f"{i}+0=?", "answer": str(i)} for i in range(count)]
        await client.put_dataset("d", tasks)
        await client.put_dataset("short", tasks[: count // 3])
        async with asyncio.timeout(900), storm:
            for dataset, seed, _, name in series[: len(series) if long_run else 1]:
                (tmp_path / name).mkdir()
                request = BatchRequest.model_validate(
                    {
                        "id": name, "pool": "null", "n": 2, "target": 7, "epochs": 2, "series": name,
                        "dataset": {"name": dataset, "seed": seed}, "filter": {"kind": "none"}, "longest_first": False,
                    }
                )  # fmt: skip
                assert await killed_again_and_again(request, yard, tmp_path / name, kills) > 0
        assert storm.killed["server"] > 0
    yard.stop()
    for _, seed, size, name in series[: len(series) if long_run else 1]:
        steps = [json.loads(file.read_text()) for file in (tmp_path / name).glob("step-*")]
        trained = [tuple(group) for groups, _ in steps for group in groups]
        assert Counter(answer for *_, answer, _ in trained) == {str(task): 2 for task in range(size)}
        assert {n for *_, n in trained} == {2}
        seen = {tuple(json.loads(line)) for line in (tmp_path / name / "seen").read_text().splitlines()}
        assert seen == set(trained), "a step that is taken again has the groups that it had"
        drawn = [(group.epoch, group.task_index) for group in await stored_groups(yard.data, name)]
        unbroken = [(epoch, place(position, size, seed, epoch)) for epoch in (0, 1) for position in range(size)]
        assert drawn == unbroken
        assert [task for _, task in drawn[:size]] != [task for _, task in drawn[size:]]
