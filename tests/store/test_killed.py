"""A process that writes is killed at any moment: what it was told is stored is there, whole and in order."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollyard.core.clock import SystemClock
from rollyard.core.errors import Unavailable
from rollyard.kinds.base import ObjectKey
from rollyard.store.base import RolloutFilter
from rollyard.store.store import Store

ROUNDS, MOST_ROUNDS = 6, 60
LEAST_ANSWERS = 50
WRITER = '''
"""Writes in eight lanes for ever; prints a line for each write once the store has answered."""
import asyncio, sys
from pathlib import Path
from rollyard.core.clock import SystemClock
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutRecord
from rollyard.store.store import Store

async def lane(store, number):
    n = 0
    while True:
        n += 1
        name = f"e{store.epoch}l{number}n{n}"
        def change(tx):
            ref = tx.add_blob(name.encode() * 50)
            return tx.put(RolloutRecord(
                namespace="default", id=name, digest="d", request="{}", pool="p", task_kind="math", group=None,
                sample_index=0, mode="train", priority=0, created_at=0.0, status=Status.COMPLETED, reward=1.0, result=ref,
            ))
        print("rollout", name, (await store.rollouts.transact(change)).cursor, flush=True)
        pool = RolloutPool.model_validate({"metadata": {"name": name}, "spec": {"replicas": n}})
        print("object", name, (await store.objects.create(pool)).metadata.resource_version, flush=True)

async def main():
    store = await Store.open(Path(sys.argv[1]), SystemClock())
    print("open", flush=True)
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(lane(store, number))

asyncio.run(main())
'''


@dataclass
class Answered:
    """Writes that were acknowledged as stored."""

    cursors: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def read(self, output: str) -> None:
        for line in output.splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n") or len(words) != 3:
                continue  # torn by the kill: it was never said
            if words[0] == "rollout":
                self.cursors[words[1]] = int(words[2])
            else:
                self.versions[words[1]] = words[2]


def start_writer(folder: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    return writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_writer(tmp_path)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_whatever_was_answered_survives_kill_9(tmp_path: Path) -> None:
    answered, chance = Answered(), random.Random(7)
    for number in range(MOST_ROUNDS):  # a slow disk needs more of them
        if number >= ROUNDS and min(len(answered.cursors), len(answered.versions)) > LEAST_ANSWERS:
            break
        process = await asyncio.to_thread(start_writer, tmp_path)
        delay = chance.uniform(0.0, 0.25)
        output = asyncio.create_task(asyncio.to_thread(process.communicate))
        await asyncio.sleep(delay)  # a kill at a random moment, not a wait for something
        process.send_signal(signal.SIGKILL)
        answered.read((await output)[0])
        await check(tmp_path, answered)
    assert len(answered.cursors) > LEAST_ANSWERS
    assert len(answered.versions) > LEAST_ANSWERS


async def check(folder: Path, answered: Answered) -> None:
    store = await Store.open(folder, SystemClock())
    try:
        rows = await store.rollouts.finished(0, 1_000_000)
        assert [r.cursor for r in rows] == list(range(1, len(rows) + 1)), "cursors are dense"
        there = {r.id: r.cursor for r in rows}
        assert {id: there.get(id) for id in answered.cursors} == answered.cursors
        for row in rows:
            assert row.result is not None
            assert await store.packs.read(row.result) == row.id.encode() * 50
        for name, version in answered.versions.items():
            found = await store.objects.get(ObjectKey(kind="RolloutPool", namespace="default", name=name))
            assert found.metadata.resource_version == version
        objects, latest = await store.objects.list_objects("RolloutPool")
        versions = sorted(int(o.metadata.resource_version) for o in objects)
        assert versions == list(range(1, int(latest) + 1)), "the log has no gap"
        counts = await store.rollouts.counts("default")
        assert (
            sum(counts.values()) == len(rows) == len(await store.rollouts.list_rollouts(RolloutFilter(limit=1_000_000)))
        )
    finally:
        await store.close()


async def test_another_process_is_refused_by_pid_until_the_first_has_died(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    with pytest.raises(Unavailable, match=rf"in use by pid {writer.pid} on "):
        await Store.open(tmp_path, SystemClock())
    writer.kill()
    await asyncio.to_thread(writer.wait)
    store = await Store.open(tmp_path, SystemClock())
    await store.close()
