"""The store's folder: its owner, journal, schema and blobs."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from rollyard.core.errors import Superseded, Unavailable
from rollyard.store import database, journal_mode
from rollyard.store.base import BlobRef
from rollyard.store.blobs import PackWriter, read_blob
from rollyard.store.folder_lock import FolderLock, JobRun
from rollyard.store.store import Store
from rollyard.store.tables import SCHEMA
from tests.support.make import rollout_pool


async def test_a_folder_has_one_server_at_a_time(tmp_path: Path) -> None:
    first = await Store.open(tmp_path)
    with pytest.raises(Unavailable, match=rf"in use by pid {os.getpid()} on "):
        await Store.open(tmp_path)
    await first.objects.create(rollout_pool())
    await first.close()
    second = await Store.open(tmp_path)
    assert (second.epoch, second.server_id) == (first.epoch + 1, first.server_id)
    await second.close()


async def test_a_client_of_the_nfs_server_here_keeps_us_out(tmp_path: Path) -> None:
    """The kernel's NFS server holds a client's lock as lockf would."""
    await (await Store.open(tmp_path)).close()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"\n"
        with pytest.raises(Unavailable, match="in use by another process"):
            await Store.open(tmp_path)
        client.communicate(b"\n")
    store = await Store.open(tmp_path)
    refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert "BlockingIOError" in refused.stderr
    await store.close()


async def test_a_disk_without_room_for_the_holders_name_is_no_crash(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(Unavailable, match="lock cannot be written: File too large"):
            lock.acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lock.acquire(), "the name is written once there is room"
    assert (tmp_path / "lock").read_text().startswith("pid ")
    lock.release()


async def test_two_folders_are_two_servers(tmp_path: Path) -> None:
    stores = [await Store.open(tmp_path / name) for name in "ab"]
    assert stores[0].server_id != stores[1].server_id
    for store in stores:
        await store.close()


async def test_what_it_makes_is_for_its_user_alone(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "data")
    await store.rollouts.transact(lambda tx: tx.add_blob(b"x"))
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(made) > 4
    assert {p.name for p in made if stat.S_IMODE(p.stat().st_mode) & 0o077} == set()
    await store.close()


async def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file cannot be used: File exists"):
        await Store.open(tmp_path / "file")
    with pytest.raises(Unavailable, match="cannot be used"):
        await Store.open(Path("/proc/rollyard"))
    (tmp_path / "rollyard.db").write_bytes(b"no database at all, but longer than a header" * 50)
    with pytest.raises(Unavailable, match=r"rollyard.db cannot be used: file is not a database"):
        await Store.open(tmp_path)
    (tmp_path / "rollyard.db").unlink()
    await (await Store.open(tmp_path)).close()  # no lock was left behind


@pytest.mark.parametrize("schema", [3, SCHEMA - 1, SCHEMA + 1])
async def test_a_folder_with_another_schema_is_left_alone(tmp_path: Path, schema: int) -> None:
    await (await Store.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / "rollyard.db")) as db:
        db.execute(f"PRAGMA user_version={schema}")
    before = (tmp_path / "rollyard.db").read_bytes()
    with pytest.raises(Unavailable, match=f"has schema {schema}, .*start with a new folder"):
        await Store.open(tmp_path)
    assert (tmp_path / "rollyard.db").read_bytes() == before


async def test_an_object_of_another_version_is_named(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.objects.create(rollout_pool())
    await store.close()
    with sqlite3.connect(tmp_path / "rollyard.db") as db:
        db.execute('UPDATE objects SET body = replace(body, \'"spec":{\', \'"spec":{"unheardOf":1,\')')
    db.close()
    with pytest.raises(Unavailable, match="the stored RolloutPool default/swe cannot be read"):
        await Store.open(tmp_path)


async def test_wal_only_where_the_file_system_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = journal_mode.file_system_of(tmp_path) in journal_mode.LOCAL
    store = await Store.open(tmp_path)
    assert store.journal == ("WAL" if local else "TRUNCATE")
    await store.objects.create(rollout_pool("one"))
    await store.close()
    monkeypatch.setattr(journal_mode, "LOCAL", frozenset())
    store = await Store.open(tmp_path)
    assert store.journal == "TRUNCATE"
    await store.objects.create(rollout_pool("two"))
    assert not list(tmp_path.glob("*-wal"))
    await store.close()
    monkeypatch.undo()
    store = await Store.open(tmp_path)
    assert [o.metadata.name for o in (await store.objects.list_objects("RolloutPool"))[0]] == ["one", "two"]
    await store.close()
    store = await Store.open(tmp_path, run=JobRun("server", 7))  # the next run may be on another node
    assert store.journal == "TRUNCATE"
    await store.close()
    assert not list(tmp_path.glob(".probe*"))


def test_file_systems_are_told_apart() -> None:
    assert journal_mode.file_system_of(Path("/proc")) == "proc"
    assert journal_mode.file_system_of(Path("/proc/self/fd")) == "proc"


def test_each_opening_and_each_full_pack_begins_a_new_one(tmp_path: Path) -> None:
    def store(packs: PackWriter, *blobs: bytes) -> list[BlobRef]:
        refs = [packs.add(b) for b in blobs]
        packs.sync()
        packs.keep()
        return refs

    first = PackWriter(tmp_path, epoch=1, limit=10)
    refs = [*store(first, b"12345", b"678901"), *store(first, b"next")]
    first.close()
    second = PackWriter(tmp_path, epoch=2, limit=10)
    refs += store(second, b"", b"later")
    second.close()
    assert [(r.pack, r.offset) for r in refs] == [
        ("00000001-0000.pack", 0),
        ("00000001-0000.pack", 5),
        ("00000001-0001.pack", 0),
        ("00000002-0000.pack", 0),
        ("00000002-0000.pack", 0),
    ]
    assert [read_blob(tmp_path, r) for r in refs] == [b"12345", b"678901", b"next", b"", b"later"]


def test_blobs_of_a_failed_batch_give_their_space_back(tmp_path: Path) -> None:
    packs = PackWriter(tmp_path, epoch=1)
    kept = packs.add(b"kept")
    packs.sync()
    packs.keep()
    packs.add(b"x" * 100_000)
    packs.sync()
    packs.drop()
    after = packs.add(b"after")
    packs.sync()
    packs.keep()
    packs.close()
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == 9
    assert (read_blob(tmp_path, kept), read_blob(tmp_path, after)) == (b"kept", b"after")


async def test_a_pack_that_cannot_be_closed_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close, failed = os.close, []

    def fail(fd: int) -> None:
        pack = os.readlink(f"/proc/self/fd/{fd}").endswith(".pack")
        close(fd)
        if pack:
            failed.append(fd)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(database, "PackWriter", partial(PackWriter, limit=1))  # each commit fills its pack
    monkeypatch.setattr(os, "close", fail)
    store = await Store.open(tmp_path)
    refs = [await store.rollouts.transact(lambda tx, data=data: tx.add_blob(data)) for data in (b"one", b"two")]
    assert [await store.packs.read(ref) for ref in refs] == [b"one", b"two"]
    assert len(failed) == 2
    await store.close()


@pytest.mark.parametrize("name", ["../rollyard.db", "/etc/passwd", "1-1.pack/../x", "1-1.pack\n", "", "1-1.packs"])
def test_a_reference_reaches_no_other_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unavailable, match="is not a pack"):
        read_blob(tmp_path, BlobRef(name, 0, 1, ""))
    (tmp_path / "1-1.pack").symlink_to("/etc/passwd")
    with pytest.raises(Unavailable, match="cannot be read"):
        read_blob(tmp_path, BlobRef("1-1.pack", 0, 1, ""))


async def test_a_later_run_of_a_job_takes_the_folder_from_one_that_lives_on(tmp_path: Path) -> None:
    """Slurm has given its node up and started the next; the process there still holds the lock, and still writes."""
    old = await Store.open(tmp_path, run=JobRun("server", 7))
    await old.objects.create(rollout_pool("one"))
    opening = asyncio.create_task(Store.open(tmp_path, run=JobRun("server", 8)))
    with pytest.raises(Superseded):
        await _confirm_for_ever(old)
    with pytest.raises(Superseded, match="a newer server uses this data folder"):
        await old.objects.create(rollout_pool("two"))
    await old.close()
    new = await opening
    await new.objects.create(rollout_pool("three"))
    assert [o.metadata.name for o in (await new.objects.list_objects("RolloutPool"))[0]] == ["one", "three"]
    await new.close()


async def test_a_lock_that_a_lost_node_keeps_is_gone_without_until_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TAKE_OVER_SECONDS", 0.2)
    old = await Store.open(tmp_path, run=JobRun("server", 7))
    new = await Store.open(tmp_path, run=JobRun("server", 7, restart=1))
    await new.objects.create(rollout_pool("one"))
    with pytest.raises(Superseded):
        await old.objects.create(rollout_pool("two"))
    await old.close()
    await new.confirm()
    with pytest.raises(Unavailable, match=r"in use by pid .*, run 7\.1 of job server; stop that server first"):
        await Store.open(tmp_path)
    await new.close()


async def test_one_whose_lock_was_lost_leaves_the_name_of_the_next_holder(tmp_path: Path) -> None:
    old = await Store.open(tmp_path, run=JobRun("server", 7))
    (tmp_path / "lock").write_text("pid 1 on n2, run 8.0 of job server\n")
    await old.close()
    assert (tmp_path / "lock").read_text() == "pid 1 on n2, run 8.0 of job server\n"


@pytest.mark.parametrize(
    ("holder", "newcomer"),
    [
        (None, JobRun("server", 8)),
        (JobRun("server", 8), JobRun("server", 7, restart=3)),
        (JobRun("server", 8), JobRun("server", 8)),
        (JobRun("server", 8), JobRun("another", 9)),
        (JobRun("server", 8), None),
    ],
)
async def test_nobody_else_is_driven_out(tmp_path: Path, holder: JobRun | None, newcomer: JobRun | None) -> None:
    store = await Store.open(tmp_path, run=holder)
    with pytest.raises(Unavailable, match="is in use by"):
        await Store.open(tmp_path, run=newcomer)
    await store.confirm()
    await store.objects.create(rollout_pool())
    await store.close()


async def _confirm_for_ever(store: Store) -> None:
    while True:
        await store.confirm()
