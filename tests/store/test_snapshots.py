"""Snapshots of rollouts in the store: their archives stay with the rollout, and are deleted with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollyard.kinds.rollout import Status
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.store import database
from rollyard.store.base import RolloutRecord, StoredSnapshot
from rollyard.store.blobs import PackWriter
from rollyard.store.store import Store
from tests.support.make import rollout
from tests.support.manual_clock import ManualClock


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack for each archive."""
    monkeypatch.setattr(database, "PackWriter", partial(PackWriter, limit=100))


async def put(store: Store, id: str, turn: int, **fields: Any) -> RolloutRecord:
    def change(tx: Any) -> RolloutRecord:
        record: RolloutRecord = tx.get("default", id) or tx.put(rollout(id, pool="p", **fields))
        blob = tx.add_blob(f"{id} {turn}".encode() * 100)
        tx.put_snapshot(record, StoredSnapshot(RolloutSnapshot(turn=turn, size=blob.length), blob))
        return record

    return await store.rollouts.transact(change)


async def end(store: Store, id: str, at: float) -> None:
    def change(tx: Any) -> None:
        tx.put(
            rollout(id, pool="p", seq=(tx.get("default", id) or rollout(id)).seq, status=Status.FAILED, finished_at=at)
        )

    await store.rollouts.transact(change)


async def test_archives_are_deleted_with_their_rollout(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)

    def packs() -> int:
        return len(list((tmp_path / "blobs").iterdir()))

    old, kept = await put(store, "old", 1), await put(store, "kept", 1)
    await put(store, "old", 2)
    for id, at in (("old", 1.0), ("kept", 9.0), ("last", 9.0)):
        await end(store, id, at)
    before = packs()
    assert await store.rollouts.prune(lambda pool: 5.0) == 1
    for _ in range(3):
        await store.packs.reclaim(kept_seconds=10.0)
        clock.turn(11.0)
    assert packs() == before - 2
    assert await store.rollouts.snapshots(old) == []
    (found,) = await store.rollouts.snapshots(kept)
    assert found.blob is not None
    assert await store.packs.read(found.blob) == b"kept 1" * 100
    await store.close()


async def test_archives_of_an_earlier_attempt_and_replaced_ones_are_deleted(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    first = await put(store, "r", 1)
    await put(store, "r", 2)
    await store.rollouts.transact(lambda tx: tx.put(rollout("r", pool="p", seq=first.seq, attempt=2)))
    again = await put(store, "r", 1)
    assert again.attempt == 2
    await put(store, "r", 1)  # repeated after a lost answer
    assert [one.about.turn for one in await store.rollouts.snapshots(again)] == [1]
    for _ in range(3):
        await store.packs.reclaim(kept_seconds=10.0)
        clock.turn(11.0)
    (found,) = await store.rollouts.snapshots(again)
    assert found.blob is not None
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [found.blob.pack]
    await store.close()
