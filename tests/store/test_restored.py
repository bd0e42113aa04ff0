"""A database that was put back from a backup, beside packs that are newer than it."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from pathlib import Path

import pytest

from rollyard.core.clock import SystemClock
from rollyard.core.errors import Expired, Fenced, Unavailable
from rollyard.kinds.rollout import RolloutRequest
from rollyard.server.batches.settlement import Settlements
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.leases import Leases
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.routing.session_index import SessionIndex
from rollyard.store.store import Store
from rollyard.wire.node import LeaseRef, ResultHeader
from tests.support.make import rollout_pool
from tests.support.reports import finish, run_stored


async def work(folder: Path, word: bytes) -> None:
    """One opening that stores a result."""
    store = await Store.open(folder)
    await store.rollouts.transact(lambda tx: tx.add_blob(word))
    await store.close()


async def restored(folder: Path) -> None:
    """A backup after the first opening; three more; the backup put back."""
    await work(folder, b"before")
    shutil.copy(folder / "rollyard.db", folder / "backup")
    for word in (b"one", b"two", b"three"):
        await work(folder, word)
    shutil.move(folder / "backup", folder / "rollyard.db")


async def test_results_are_accepted_by_a_database_from_a_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await restored(tmp_path)
    packs = {p.name: p.read_bytes() for p in (tmp_path / "blobs").iterdir()}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        store = await Store.open(tmp_path)
    (told,) = [r.getMessage() for r in caplog.records if r.name == "rollyard.store.database"]
    assert "it has epoch 1, but there are packs or an endpoint.json of epoch 4" in told
    assert store.epoch == 5
    ref = await store.rollouts.transact(lambda tx: tx.add_blob(b"after"))
    assert await store.packs.read(ref) == b"after"
    assert ref.pack not in packs
    await store.close()
    assert {name: (tmp_path / "blobs" / name).read_bytes() for name in packs} == packs
    again = await Store.open(tmp_path)
    assert again.epoch == 6
    assert await again.packs.read(ref) == b"after"
    await again.close()


async def test_an_epoch_that_others_were_told_of_is_not_told_again(tmp_path: Path) -> None:
    await (await Store.open(tmp_path)).close()
    store = await Store.open(tmp_path, told_epoch=7)
    assert store.epoch == 8
    await store.close()


def rollouts_of(store: Store, clock: SystemClock) -> RolloutService:
    leases = Leases(clock, 15, SessionIndex())
    node_agents, pools = ConnectedNodeAgents(clock), StoredPools(store.objects)
    return RolloutService(store.rollouts, clock, node_agents, leases, Settlements().settle_ended, pools.max_attempts)


async def test_what_the_backup_does_not_know_gets_a_clean_answer(tmp_path: Path) -> None:
    await work(tmp_path, b"before")
    shutil.copy(tmp_path / "rollyard.db", tmp_path / "backup")
    store, clock = await Store.open(tmp_path), SystemClock()
    request = RolloutRequest.model_validate({"id": "r", "pool": "swe", "task": {"kind": "math"}})
    await rollouts_of(store, clock).submit("default", [request])
    late = (await store.objects.create(rollout_pool("later"))).metadata.resource_version
    await store.close()
    shutil.move(tmp_path / "backup", tmp_path / "rollyard.db")

    store = await Store.open(tmp_path)
    rollouts = rollouts_of(store, clock)
    header = ResultHeader(
        lease=LeaseRef(namespace="default", id="r", fence=1), status="Completed", reward=1.0, sampled=1
    )
    for _ in range(2):
        with pytest.raises(Fenced, match=r"does not know rollout .*; drop its work"):
            await finish(rollouts, header, "u", b"result")
    with pytest.raises(Fenced, match=r"does not know rollout .*; drop its work"):
        await run_stored(rollouts, header.lease, "u", b"run")
    assert await store.rollouts.newest_cursor() == 0
    with pytest.raises(Expired, match="list again"):
        store.objects.watch(None, late)
    await store.close()


@pytest.mark.parametrize("left", [None, b""])
async def test_packs_without_their_database_are_an_error_that_says_what_to_do(
    tmp_path: Path, left: bytes | None
) -> None:
    await work(tmp_path, b"x")
    shutil.move(tmp_path / "rollyard.db", tmp_path / "kept")
    if left is not None:
        (tmp_path / "rollyard.db").write_bytes(left)
    for _ in range(2):
        with pytest.raises(
            Unavailable, match=r"missing or empty, but .*/blobs contains trajectories: restore the database"
        ):
            await Store.open(tmp_path)
    assert (tmp_path / "rollyard.db").exists() == (left is not None)
    shutil.move(tmp_path / "kept", tmp_path / "rollyard.db")
    await work(tmp_path, b"y")


async def test_a_database_without_a_table_beside_packs_is_none(tmp_path: Path) -> None:
    """As a copy without its -wal file is."""
    await work(tmp_path, b"x")
    (tmp_path / "rollyard.db").unlink()
    with sqlite3.connect(tmp_path / "rollyard.db") as db:
        db.execute("PRAGMA journal_mode=WAL")
    db.close()
    with pytest.raises(Unavailable, match="missing or empty"):
        await Store.open(tmp_path)
