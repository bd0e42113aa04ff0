"""One batch of all task kinds, with right and wrong answers, while processes of every kind are killed at random."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.task import Task
from rollyard.tasks.gym.handler import GymHandler
from rollyard.trajectory import Trajectory
from tests.support.mixed_tasks import MixedTask, gym_entry, mixed_tasks
from tests.support.released import unpacked
from tests.support.scripted_engine import scripted_pool
from tests.support.storm import Storm
from tests.support.swe_repository import repository_root
from tests.support.yard import MODEL, ROOT, Yard, end

pytestmark = [pytest.mark.slow(60), pytest.mark.heavy]
VICTIMS = ("server", "node agent", "model server", "scripted engine", "sandbox", "checker", "environment", "library")
MANY = {"min": 4, "max": 6}


@pytest.mark.long  # test_storm.py kills in the suite, and each kind has whole rollouts there
@pytest.mark.parametrize("count", [14, 500])
async def test_no_kill_gives_or_takes_a_reward_of_any_kind(
    tmp_path_factory: pytest.TempPathFactory, open_folder: Path, count: int
) -> None:
    library = await asyncio.to_thread(unpacked, "reasoning-gym", "0.1.25")
    yard, seed = Yard(tmp_path_factory.mktemp("yard")), secrets.randbelow(10**6) if count == 500 else 11
    image = await asyncio.to_thread(repository_root, open_folder / "root")
    tasks = mixed_tasks(count, image, seed, await answers(library, count // 7 + 1))
    yard.env["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT), str(library)])
    policy = scripted_pool(yard.folder, MODEL, {task.name: task.turns for task in tasks})
    stages = {"init": {"workers": MANY}, "run": {"workers": MANY}, "eval": {"workers": MANY}}
    print(f"\nseed {seed}")
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy=policy, demo={"maxAttempts": 20, "stages": stages})
            await yard.ready(client)
            ended, killed = await through_a_storm(yard, client, tasks, seed)
    finally:
        await end(yard)
    check(tasks, ended, killed)
    assert killed.keys() == set(VICTIMS)


async def through_a_storm(
    yard: Yard, client: AsyncClient, tasks: Sequence[MixedTask], seed: int
) -> tuple[list[Trajectory], Counter[str]]:
    """Submit the tasks, and return their results. Each has one terminal record in a stream that is open all the time."""
    records = Counter[str]()

    async def read_records() -> None:
        async for _, columns in client.stream_columns():
            records.update(sample["id"] for sample in columns.samples)

    requests = [
        {"id": task.name, "pool": "demo", "task": task.fields, "sampling": {"max_tokens": 2048}} for task in tasks
    ]
    short = len(tasks) < 100
    pause, most = ((0.3, 1.0), len(VICTIMS)) if short else ((4.0, 12.0), 10_000)
    async with running(read_records()):
        storm = Storm(yard, seed, pause, most=most, victims=VICTIMS)
        async with storm:
            ids = await client.submit([RolloutRequest.model_validate(one) for one in requests])
            ended = await yard.gather(client, ids, 3600)

        async def all_read() -> bool:
            return len(records) == len(ids)

        await yard.until(all_read)
        assert records == Counter(ids)
    return ended, storm.killed


def check(tasks: Sequence[MixedTask], ended: Sequence[Trajectory], killed: Counter[str]) -> None:
    statuses = Counter((str(task.fields["kind"]), one.status.name) for task, one in zip(tasks, ended, strict=True))
    print(
        f"{len(ended)} rollouts, killed {dict(killed)}; {dict(statuses)}; attempts {Counter(one.attempt for one in ended)}"
    )
    for task, one in zip(tasks, ended, strict=True):
        if one.status is Status.INFRA_FAILED:
            assert one.reward is None
        else:
            assert one.status is Status.COMPLETED, (task, one.error)
            assert one.reward == task.reward, (task, one.notes, one.metrics, one.turns)
            assert [turn.text for turn in one.turns] == list(task.turns)
    assert sum(one.status is Status.COMPLETED for one in ended) > 0.9 * len(ended)


async def answers(library: Path, count: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(library)]))
        patch.setattr(sys, "path", [*sys.path, str(library)])
        handler = GymHandler()
        try:
            tasks = [Task.model_validate(gym_entry(i)) for i in range(count)]
            return [await handler.solve(task, cast(Any, None)) for task in tasks]
        finally:
            await handler.close()
