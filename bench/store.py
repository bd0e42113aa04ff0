"""Cost of durable rollouts: group commit beside one commit and fsync for each operation, on the same tables and disk.

    python bench/store.py [--folder .] [--rollouts 5000] [--clients 256]

Each rate counts answered, durable operations (synchronous=FULL). A life is four of them: submit, grant, run stored, result
stored, the last two with a blob. The baseline runs the same statements, one operation a transaction, without our queue.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from rollyard.kinds.rollout import Stage, Status
from rollyard.store.base import RolloutRecord
from rollyard.store.blobs import PackWriter
from rollyard.store.journal_mode import Journal
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.store.tables import prepare
from rollyard.store.writer import WriteUnit

T = TypeVar("T")
TASK = '{"pool":"p","task":{"kind":"math","question":"' + "x" * 1000 + '"}}'
SMALL, LARGE = os.urandom(4 << 10), os.urandom(1 << 20)
LARGE_BLOBS = 200
BASELINE_DIVISOR = 10
"""The baseline runs a tenth of the operations: it is that much slower, and its times vary little."""


class Transactor(Protocol):
    async def transact(self, change: Callable[[Transaction], T]) -> T: ...


class OneByOne:
    """The baseline: one transaction, with its fsyncs, for every operation."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        folder.mkdir()
        db = sqlite3.connect(folder / "rollyard.db", isolation_level=None)
        db.execute(f"PRAGMA journal_mode={journal}")
        db.execute("PRAGMA synchronous=FULL")
        prepare(db)
        self._unit = WriteUnit(db, PackWriter(folder, epoch=1))

    def close(self) -> None:
        self._unit.packs.close()
        self._unit.db.close()

    async def transact(self, change: Callable[[Transaction], T]) -> T:
        self._unit.db.execute("BEGIN IMMEDIATE")
        result = change(Transaction(self._unit))
        self._unit.packs.sync()
        self._unit.db.execute("COMMIT")
        self._unit.packs.keep()
        return result


def submitted(id: str) -> RolloutRecord:
    return RolloutRecord(
        namespace="default", id=id, digest="d" * 64, request=TASK, pool="p", task_kind="math", group=id[:-1],
        sample_index=0, mode="train", priority=0, created_at=time.time(),
    )  # fmt: skip


def granted(tx: Transaction, id: str) -> RolloutRecord:
    return tx.put(replace(read(tx, id), status=Status.RUNNING, holder="u/i", fence=1, endpoints={"policy": "e1"}))


def run_stored(tx: Transaction, id: str) -> RolloutRecord:
    result, artifact = tx.add_blob(SMALL), tx.add_blob(SMALL)
    return tx.put(replace(read(tx, id), stage=Stage.EVAL, result=result, artifact=artifact))


def finished(tx: Transaction, id: str) -> RolloutRecord:
    return tx.put(replace(read(tx, id), status=Status.COMPLETED, holder=None, reward=1.0))


def read(tx: Transaction, id: str) -> RolloutRecord:
    record = tx.get("default", id)
    assert record is not None
    return record


async def submit(store: Transactor, id: str) -> None:
    await store.transact(lambda tx: tx.put(submitted(id)))


async def live(store: Transactor, id: str) -> None:
    await submit(store, id)
    for step in (granted, run_stored, finished):
        await store.transact(lambda tx, step=step: step(tx, id))  # type: ignore[misc]


async def upload(store: Transactor, id: str) -> None:
    await store.transact(lambda tx: tx.add_blob(LARGE))


async def rate(
    work: Callable[[Transactor, str], Awaitable[None]], store: Transactor, ids: list[str], clients: int
) -> float:
    """Return the operations per second of `clients` clients that each wait for their answer."""

    async def client(mine: Iterable[str]) -> None:
        for id in mine:
            await work(store, id)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for n in range(clients):
            group.create_task(client(ids[n::clients]))
    return len(ids) / (time.perf_counter() - started)


async def pairs(store: Transactor, count: int) -> float:
    """Return get + put pairs per second inside one transaction: the cost of granting many leases on one core."""

    def change(tx: Transaction) -> float:
        started = time.perf_counter()
        for n in range(count):
            tx.put(replace(read(tx, f"s{n}"), fence=n + 1))
        return count / (time.perf_counter() - started)

    return await store.transact(change)


def report(name: str, unit: str, ours: float, baseline: float) -> None:
    print(f"  {name:<34}{ours:>10.0f}{baseline:>12.0f}{ours / baseline:>8.1f}x  {unit}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where to make the data folders: the disk to measure"
    )
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=256)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        store = await Store.open(Path(folder, "ours"))
        one_by_one = OneByOne(Path(folder, "baseline"), store.journal)
        print(
            f"journal {store.journal}, SQLite {sqlite3.sqlite_version}, {chosen.clients} clients, {os.cpu_count()} cores\n"
        )
        print(f"  {'':<34}{'ours':>10}{'baseline':>12}{'ratio':>9}")
        for name, unit, work, prefix, count in (
            ("submits", "a second", submit, "s", chosen.rollouts),
            ("whole lives, 4 durable steps each", "a second", live, "l", chosen.rollouts),
            ("uploads of 1 MiB", "MiB a second", upload, "u", LARGE_BLOBS),
        ):
            ids = [f"{prefix}{n}" for n in range(count)]
            ours = await rate(work, store.rollouts, ids, chosen.clients)
            report(name, unit, ours, await rate(work, one_by_one, ids[: count // BASELINE_DIVISOR], 1))
        print(f"\n  get + put pairs in one transaction: {await pairs(store.rollouts, chosen.rollouts):.0f} a second")
        await store.close()
        one_by_one.close()


if __name__ == "__main__":
    asyncio.run(main())
