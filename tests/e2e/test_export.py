"""`rollyard export rollouts` by a real server while rollouts end all the time, and the server is killed in the middle."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard

from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.trajectory import Outcome, Segment, Trajectory, Turn
from rollyard.trajectory.columns import encode
from rollyard.trajectory.parquet import read_parquet
from tests.support.until import until
from tests.support.yard import ROOT, Yard, end

pytestmark = pytest.mark.slow(30)

STORED, TOGETHER, FIRST = 2000, 10, 50
TOKENS = 400
BEGUN_BYTES = 1000
"""Size of a file with rollouts in it: that of a Parquet file without any is smaller."""
TASK = {"kind": "math", "problem": "1+1", "answer": "2"}
ENDS = (Status.COMPLETED, Status.TRUNCATED, Status.COMPLETED, Status.FAILED)


def outcome(n: int) -> Outcome:
    ids = [(n * 31 + i * 7919) % 50_000 for i in range(TOKENS)]
    sampled = [i >= 10 for i in range(TOKENS)]
    segment = Segment(
        token_ids=ids, loss_mask=[int(one) for one in sampled], prompt_length=10,
        logprobs=[-0.5 if one else None for one in sampled], weights_version=["v1" if one else None for one in sampled],
    )  # fmt: skip
    turn = Turn(segment=0, prompt_length=10, response_length=TOKENS - 10, text="a word " * 99, finish_reason="stop")
    status = ENDS[n % len(ENDS)]
    return Outcome(status=status, reward=1.0 if status.scored else None, segments=[segment], turns=[turn])


async def store_ended(data: Path) -> None:
    """Store ended rollouts. Their order of ends is not their order of submits; one in ten has the metadata `split: test`."""
    store, now = await Store.open(data), time.time()

    def record(tx: Transaction, n: int, *, ended: bool) -> RolloutRecord:
        found, metadata = outcome(n), {"split": "test" if n % 10 == 3 else "train"}
        request = RolloutRequest(pool="demo", task=Task.model_validate({**TASK, "metadata": metadata}))
        there = tx.get("default", f"r{n}")
        return RolloutRecord(
            seq=there.seq if there is not None else 0, namespace="default", id=f"r{n}", digest="d" * 64, pool="demo",
            request=request.model_dump_json(exclude_defaults=True), task_kind="math", group=f"g{n // 8}", metadata=metadata,
            sample_index=n % 8, mode="train", priority=0, created_at=now - 60, reward=found.reward if ended else None,
            status=found.status if ended else Status.QUEUED, finished_at=now - 30 if ended else None,
            summary={"turns": 1, "tokens": TOKENS} if ended else {},
            result=tx.add_blob(zstandard.compress(encode([found]))) if ended else None,
        )  # fmt: skip

    def put(tx: Transaction) -> None:
        for ended, numbers in ((False, range(STORED)), (True, reversed(range(STORED)))):
            for n in numbers:
                tx.put(record(tx, n, ended=ended))

    policy = {"model": {"path": "/nowhere"}, "engine": {"external": {"endpoints": []}}}
    await store.objects.create(InferencePool.model_validate({"metadata": {"name": "policy"}, "spec": policy}))
    spec = {"replicas": 0, "inference": {"policy": "policy"}}
    await store.objects.create(RolloutPool.model_validate({"metadata": {"name": "demo"}, "spec": spec}))
    await store.rollouts.transact(put)
    await store.close()


async def end_rollouts(client: AsyncClient) -> None:
    """Submit rollouts and cancel them, as fast as the server can."""
    for n in itertools.count():
        task = Task.model_validate({**TASK, "metadata": {"split": "test"}})
        await client.submit([RolloutRequest(id=f"late-{n}", group=f"late-{n}", pool="demo", task=task, n=TOGETHER)])
        await client.cancel_rollouts(group=f"late-{n}")


def read(file: Path) -> list[Trajectory]:
    if file.suffix == ".jsonl":
        return [Trajectory.model_validate_json(line) for line in file.read_text().splitlines()]
    return [trajectory for columns in read_parquet(file) for trajectory in columns.trajectories()]


@pytest.mark.parametrize(
    ("name", "words", "by_submit"),
    [
        pytest.param("searched.jsonl", ("--metadata", "split=test"), True, marks=pytest.mark.long),
        ("all.parquet", (), False),
        pytest.param(
            "some.jsonl",
            ("--pool", "demo", "--status", "completed", "--status", "cancelled"),
            False,
            marks=pytest.mark.long,
        ),
    ],
)
async def test_each_rollout_that_had_ended_is_in_the_file_once_and_no_later_one(
    name: str, words: Sequence[str], by_submit: bool, tmp_path: Path
) -> None:
    yard, output = Yard(tmp_path), tmp_path / name
    part = output.with_name(f".{name}.part")
    await store_ended(yard.data)
    yard.start()
    try:
        async with yard.client() as client, running(end_rollouts(client)) as writing:

            async def ends_since(cursor: int) -> bool:
                return (await client.newest_cursor())[0] >= cursor + FIRST

            await until(lambda: ends_since(STORED))
            before, _ = await client.newest_cursor()
            command = [sys.executable, "-m", "rollyard.cli.main", "export", "rollouts", *words, "-o", str(output)]
            export = subprocess.Popen(command, env=yard.user_env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            await until(lambda: part.exists() and part.stat().st_size > BEGUN_BYTES, every=0.001)
            export.send_signal(signal.SIGSTOP)
            begun, _ = await client.newest_cursor()
            await until(lambda: ends_since(begun))
            yard.kill()
            yard.start()
            await until(lambda: ends_since(begun + FIRST))
            export.send_signal(signal.SIGCONT)
            _, told = await asyncio.to_thread(export.communicate)
            assert export.returncode == 0, told
            assert not writing.done()
        async with yard.client() as client:
            trajectories = read(output)
            found = [one.id for one in trajectories]
            assert f"{len(found)} rollouts written, of those that had ended by 20" in told
            views = [view async for view in client.rollouts() if view.cursor is not None]
            if not by_submit:
                views.sort(key=lambda view: view.cursor)
            if "--status" in words:
                views = [view for view in views if view.status in (Status.COMPLETED, Status.CANCELLED)]
            if "--metadata" in words:
                views = [view for view in views if view.metadata["split"] == "test"]
            last = max(view.cursor or 0 for view in views if view.id in set(found))
            assert before <= last <= begun
            assert found == [view.id for view in views if (view.cursor or 0) <= last]
            for one in trajectories:
                assert one.segments == (outcome(int(one.id[1:])).segments if one.id[0] == "r" else [])
    finally:
        await end(yard)
