"""Ended rollouts are deleted after their time to live, and their space is freed: whole, and through every crash."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage, Status
from rollyard.store import blobs, database, pack_store, pruning, rollout_store, writer
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.blobs import PackWriter
from rollyard.store.store import Store
from tests.support.make import rollout
from tests.support.manual_clock import ManualClock

POOL = PoolKey("default", "p")
ROOT = Path(__file__).resolve().parents[2]
BLOB_BYTES, PACK_BYTES = 1000, 5000


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack ends after five results."""
    monkeypatch.setattr(database, "PackWriter", partial(PackWriter, limit=PACK_BYTES))


def content(id: str) -> bytes:
    return (id.encode() * BLOB_BYTES)[:BLOB_BYTES]


async def end(store: Store, id: str, at: float, pool: str = "p", **fields: Any) -> RolloutRecord:
    def change(tx: Any) -> RolloutRecord:
        done = {"status": Status.COMPLETED, "reward": 1.0, "finished_at": at, "pool": pool, "group": "g"} | fields
        return tx.put(rollout(id, **done, result=tx.add_blob(content(id))))  # type: ignore[no-any-return]

    return await store.rollouts.transact(change)


async def prune(store: Store, at: float) -> int:
    return await store.rollouts.prune(lambda pool: at if pool == POOL else 0.0)


def packs(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "blobs").iterdir())


async def ids(store: Store) -> list[str]:
    return [record.id for record in await store.rollouts.list_rollouts(RolloutFilter(limit=10_000))]


async def test_only_what_is_old_and_of_the_pool_goes(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    for n in range(6):
        await end(store, f"r{n}", at=float(n))
    await end(store, "other", at=0.0, pool="q")
    await store.rollouts.transact(lambda tx: tx.put(rollout("live", pool="p", created_at=0.0)))
    await end(store, "last", at=0.0)
    before = await store.rollouts.counts("default")
    assert await prune(store, at=4.0) == 4
    assert await ids(store) == ["r4", "r5", "other", "live", "last"]
    assert await store.rollouts.get("default", "r3") is None
    assert (await store.rollouts.counts("default"), await store.rollouts.reward_mean("default")) == (before, 1.0)
    assert await prune(store, at=4.0) == 0
    await store.close()


async def test_the_metadata_of_a_rollout_go_with_it(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    for id in ("old", "last"):
        made = rollout(id, status=Status.COMPLETED, finished_at=1.0, metadata={"level": 3, "source": id, "tags": []})
        await store.rollouts.transact(lambda tx, made=made: tx.put(made))  # type: ignore[misc]
    assert await prune(store, at=9.0) == 1
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "rollyard.db")) as db:
        assert db.execute("SELECT item FROM metadata_items ORDER BY item").fetchall() == [
            ("level=3",),
            ("source=last",),
        ]


async def test_cursors_and_order_of_arrival_are_given_once(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    last = None
    for n in range(3):
        last = await end(store, f"r{n}", at=0.0)
    assert await prune(store, at=10.0) == 2, "the newest stays, for its numbers"
    after = await end(store, "next", at=11.0)
    assert last is not None
    assert (after.cursor, after.seq) == ((last.cursor or 0) + 1, last.seq + 1)
    await store.close()


async def test_an_id_may_be_used_again(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await end(store, "r", at=0.0)
    await end(store, "last", at=0.0)
    await prune(store, at=1.0)
    again = await store.rollouts.transact(lambda tx: tx.put(rollout("r", status=Status.QUEUED)))
    assert (again.cursor, again.status) == (None, Status.QUEUED)
    await store.close()


async def test_a_pack_without_a_needed_result_is_deleted_after_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    for n in range(12):
        await end(store, f"r{n}", at=float(n))
    first, second, third = packs(tmp_path)
    await prune(store, at=5.0)
    assert await store.packs.reclaim(60.0) == 0
    clock.turn(59.0)
    assert await store.packs.reclaim(60.0) == 0
    assert packs(tmp_path) == [first, second, third]
    clock.turn(2.0)
    assert await store.packs.reclaim(60.0) == PACK_BYTES
    assert packs(tmp_path) == [second, third]
    assert await store.packs.reclaim(0.0) == 0
    await store.close()


async def test_a_pack_with_few_needed_results_is_compacted(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await end(store, "kept", at=99.0)
    for n in range(9):
        await end(store, f"r{n}", at=float(n))
    old = packs(tmp_path)[0]
    await prune(store, at=4.0)
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert old not in packs(tmp_path)
    await check(store, {"kept", *(f"r{n}" for n in range(4, 9))})
    await store.close()
    store = await Store.open(tmp_path)
    await check(store, {"kept", *(f"r{n}" for n in range(4, 9))})
    await store.close()


async def test_a_pack_that_a_live_rollout_needs_stays(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    scored = await store.rollouts.transact(
        lambda tx: tx.put(
            rollout(
                "eval",
                pool="p",
                stage=Stage.EVAL,
                result=tx.add_blob(content("eval")),
                artifact=tx.add_blob(b"artifact"),
            )
        )
    )
    for n in range(6):
        await end(store, f"r{n}", at=float(n))
    old = packs(tmp_path)[0]
    await prune(store, at=4.0)
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert old in packs(tmp_path)
    assert scored.result is not None
    assert await store.packs.read(scored.result) == content("eval")
    await store.rollouts.transact(lambda tx: tx.put(replace(scored, status=Status.CANCELLED, finished_at=5.0)))
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert old not in packs(tmp_path), "what an ended rollout needs of it was moved"
    moved = await store.rollouts.get(scored.namespace, scored.id)
    assert moved is not None
    assert moved.result is not None
    assert moved.artifact is not None
    assert await store.packs.read(moved.result) == content("eval")
    assert await store.packs.read(moved.artifact) == b"artifact"
    await store.close()


async def test_a_damaged_pack_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await Store.open(tmp_path)
    kept = await end(store, "kept", at=99.0)
    for n in range(6):
        await end(store, f"r{n}", at=float(n))
    assert kept.result is not None
    with (tmp_path / "blobs" / kept.result.pack).open("r+b") as file:
        file.write(b"?")
    await prune(store, at=4.0)
    await store.packs.reclaim(0.0)
    assert "is kept as it is: the blob at 0" in caplog.text
    assert kept.result.pack in packs(tmp_path)
    await store.close()


async def test_artifacts_may_go_before_their_rollouts(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)

    async def scored(id: str, at: float, pool: str = "p", status: Status = Status.COMPLETED) -> None:
        def change(tx: Any) -> None:
            artifact = tx.add_blob(content(f"{id}!") * 3)
            tx.put(
                rollout(
                    id, status=status, stage=Stage.EVAL, reward=1.0 if status.scored else None, pool=pool,
                    finished_at=at if status.terminal else None, result=tx.add_blob(content(id)), artifact=artifact,
                )
            )  # fmt: skip

        await store.rollouts.transact(change)

    for n in range(3):
        await scored(f"r{n}", at=float(n))
    await scored("other", at=0.0, pool="q")
    await scored("live", at=0.0, status=Status.RUNNING)
    before = size_of(tmp_path)
    assert await store.rollouts.prune_artifacts({POOL: 2.0}) == 2
    assert await store.rollouts.prune_artifacts({POOL: 2.0}) == 0
    await check(store, {"r0", "r1", "r2", "other", "live"})
    records = await store.rollouts.list_rollouts(RolloutFilter())
    assert {r.id for r in records if r.artifact_deleted} == {"r0", "r1"}
    for record in records:
        assert (record.artifact is None) == record.artifact_deleted
        assert record.artifact is None or await store.packs.read(record.artifact) == content(f"{record.id}!") * 3
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert size_of(tmp_path) < before, "the space of the two is free, and their results were moved"
    await store.close()
    store = await Store.open(tmp_path)
    await check(store, {"r0", "r1", "r2", "other", "live"})
    assert await prune(store, at=99.0) == 3, "without an artifact too"
    await store.close()


async def test_packs_that_the_database_does_not_know_stay(tmp_path: Path) -> None:
    """As after a backup was put back: the newer database may come back too."""
    store = await Store.open(tmp_path)
    await end(store, "r", at=0.0)
    await store.close()
    unknown = tmp_path / "blobs" / "00000001-0099.pack"
    unknown.write_bytes(b"newer")
    store = await Store.open(tmp_path)
    for n in range(9):
        await end(store, f"r{n}", at=float(n))
    await prune(store, at=99.0)
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert unknown.exists()
    await store.close()


async def check(store: Store, expected: set[str]) -> None:
    """All these are there with their results, and no others."""
    records = await store.rollouts.list_rollouts(RolloutFilter(limit=10_000))
    assert {record.id for record in records} == expected
    for record in records:
        assert record.result is not None
        assert await store.packs.read(record.result) == content(record.id)


# every crash

WATCHED = {module.__file__ for module in (pruning, pack_store, blobs, writer, rollout_store)}
KEPT = {"kept", "r8", "r9"}
GONE = {f"r{n}" for n in range(8)}


@dataclass
class CrashImages:
    """Copies of the folder at every line of the code that deletes: the disk as a `kill -9` at that line leaves it."""

    folder: Path
    target: Path
    lines: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            with self.lock:
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                with suppress(shutil.Error):  # SQLite's own files come and go in the other thread
                    shutil.copytree(
                        self.folder, self.target / str(len(self.lines)), ignore=shutil.ignore_patterns("lock*")
                    )
                self.lines.append(place)
        return self.trace


async def delete_all(store: Store) -> None:
    await prune(store, at=8.0)
    for _ in range(4):
        await store.packs.reclaim(0.0)


async def test_a_kill_at_any_line_loses_nothing_and_the_next_pass_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "MOVED_BYTES", BLOB_BYTES)
    images = CrashImages(tmp_path / "yard", tmp_path / "images")
    store = await Store.open(images.folder)
    await end(store, "kept", at=99.0)
    for n in range(10):
        await end(store, f"r{n}", at=float(n))
    await store.close()
    threading.settrace(images.trace)
    try:
        store = await Store.open(images.folder)
        sys.settrace(images.trace)
        await delete_all(store)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    await store.close()
    assert len(set(images.lines)) > 60
    for number in random.Random(3).sample(range(len(images.lines)), 40):
        image = images.target / str(number)
        if not (image / "rollyard.db").exists():
            continue
        store = await Store.open(image)
        there = set(await ids(store))
        assert there >= KEPT, images.lines[number]
        assert there <= KEPT | GONE
        await check(store, there)
        await delete_all(store)
        await end(store, "more", at=99.0)
        await check(store, KEPT | {"more"})
        await store.close()
        assert size_of(image) <= 2 * PACK_BYTES + BLOB_BYTES, images.lines[number]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "blobs").iterdir())


WRITER = f"""
import asyncio, sys, time
from functools import partial
from pathlib import Path
from rollyard.kinds.rollout import Status
from rollyard.store import database
from rollyard.store.blobs import PackWriter
from rollyard.store.store import Store
from tests.store.test_pruned import LIFE_SECONDS, end

async def lane(store, number):
    n = 0
    while True:
        n += 1
        id, at = f"e{{store.epoch}}l{{number}}n{{n}}", time.time()
        await end(store, id, at)
        print(id, at, flush=True)

async def pruner(store):
    while True:
        await store.rollouts.prune(lambda pool: time.time() - LIFE_SECONDS)
        await store.packs.reclaim(0.0)

async def main():
    database.PackWriter = partial(PackWriter, limit={PACK_BYTES})
    store = await Store.open(Path(sys.argv[1]))
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(lane(store, number))
        group.create_task(pruner(store))

asyncio.run(main())
"""
LIFE_SECONDS = 0.3


async def until_newest(cursor: int, folder: Path) -> None:
    """Wait until another process has ended so many rollouts."""
    async with asyncio.timeout(60):
        while newest(folder) < cursor:
            await asyncio.sleep(0.02)


def newest(folder: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{folder / 'rollyard.db'}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT max(cursor) FROM rollouts").fetchone()[0] or 0)
    return 0


async def test_what_is_not_old_survives_kill_9_while_everything_else_is_deleted(tmp_path: Path) -> None:
    chance, answered = random.Random(5), 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        before = newest(tmp_path)  # no process writes now; beside one that opens the folder a read may fail
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            output = asyncio.create_task(asyncio.to_thread(process.communicate))
            try:
                await until_newest(before + 20, tmp_path)
                await asyncio.sleep(chance.uniform(0.0, 0.5))  # a kill at a random moment, not a wait for something
            finally:
                process.send_signal(signal.SIGKILL)
            told, _ = await output
            ended_at = time.time()  # up to its end the process goes on deleting
        lines = [line.split() for line in told.splitlines(keepends=True) if line.endswith("\n")]
        store = await Store.open(tmp_path)
        there = await ids(store)
        await check(store, set(there))
        assert {id for id, at in lines if float(at) >= ended_at - LIFE_SECONDS} <= set(there)
        assert len(lines) > 10
        answered += len(lines)
        await store.close()
    store = await Store.open(tmp_path)
    await end(store, "last", at=time.time())
    await prune(store, at=time.time() - 1e-3)
    for _ in range(3):
        await store.packs.reclaim(0.0)
    assert len(await ids(store)) <= 2
    assert size_of(tmp_path) < 8 * PACK_BYTES < answered * BLOB_BYTES
    await store.close()
