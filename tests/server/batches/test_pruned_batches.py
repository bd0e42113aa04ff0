"""Batches, their groups and tasks go when nobody can need them any more, and no earlier."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.core.errors import Expired, NotFound, Unavailable
from rollyard.kinds.batch import BatchKey
from rollyard.kinds.rollout import Status
from rollyard.server.rollouts.result_pruner import ACKNOWLEDGED_SECONDS, ResultPruner
from rollyard.store import batch_pruning
from rollyard.store.base import RolloutRecord
from rollyard.store.writer import Writer
from tests.server.batches.conftest import Site, task
from tests.support.make import rollout, rollout_pool
from tests.support.played_pool import Played

TTL = 60
EVERY = {"kind": "none"}
TABLES = ("batches", "batch_groups", "series", "dataset_tasks", "acknowledged_groups")


@pytest_asyncio.fixture
async def short(site: Site) -> AsyncIterator[Site]:
    """A pool with a time to live of a minute."""
    await site.store.objects.create(rollout_pool(ttlSecondsAfterFinished=TTL))
    yield site


async def prune(site: Site) -> int:
    """Prune, after a rollout of another pool has become the newest of the server, which is never deleted."""
    newest = rollout(f"r-{secrets.token_hex(8)}", pool="q", status=Status.COMPLETED, finished_at=site.clock.time())
    await site.store.rollouts.transact(lambda tx: tx.put(newest))
    return await ResultPruner(site.store, site.clock).prune()


def rows(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "rollyard.db")) as db:
        return [int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES]


def one_all_equal(record: RolloutRecord) -> Played:
    """The first group is uninformative, the others are informative."""
    return Played(reward=0.0 if str(record.group).endswith("-g0") else float(record.sample_index))


def key(id: str) -> BatchKey:
    return BatchKey("default", id)


async def delivered(site: Site, id: str, after: int = 0) -> list[int]:
    groups, _ = await site.batches.groups(key(id), after, 100, 0.0)
    for group in groups:
        assert len(await site.batches.rollouts_of(group)) == group.n
    return [group.delivery or 0 for group in groups]


async def test_a_result_stays_until_the_time_to_live_of_its_batch_has_passed(short: Site, tmp_path: Path) -> None:
    await short.create(id="b", tasks=[task(0).model_dump(), task(1).model_dump()], filter=EVERY, target=2)
    first, second, *others = await short.pool.lease(4)
    for record in (first, second):
        await short.pool.finish(record, Played())
    short.clock.turn(10 * TTL)
    assert await prune(short) == 0, "a delivered group of a running batch"
    await short.pool.finish(others[0], Played())
    short.clock.turn(10 * TTL)
    assert await prune(short) == 0, "a group that is not delivered yet"
    await short.pool.finish(others[1], Played())
    short.clock.turn(TTL - 1)
    assert await prune(short) == 0
    assert await delivered(short, "b") == [1, 2]
    short.clock.turn(2)
    assert await prune(short) == 4
    assert rows(tmp_path) == [0] * len(TABLES)
    with pytest.raises(NotFound):
        await short.view("b")


async def test_a_running_batch_keeps_only_what_can_be_read(short: Site, tmp_path: Path) -> None:
    await short.dataset("d", 50)
    await short.create(id="s", dataset={"name": "d"}, step_groups=1, max_staleness=3)
    await short.pool.play(one_all_equal)
    await short.batches.acknowledge(key("s"), 2)
    await short.pool.play(one_all_equal)
    before = await delivered(short, "s")
    assert len(before) > 2
    short.clock.turn(TTL + 1)
    assert await prune(short) == 2, "the uninformative group"
    short.clock.turn(ACKNOWLEDGED_SECONDS)
    assert await prune(short) == 4, "two acknowledged groups"
    assert rows(tmp_path) == [1, len(before) - 2, 1, 50, 0]
    for after in (0, 1):
        with pytest.raises(Expired, match=rf"delivery {after + 1} of batch 's' is deleted.*read the groups after 2"):
            await delivered(short, "s", after)
    assert await delivered(short, "s", 2) == before[2:]
    await short.batches.cancel(key("s"), keep=True)
    short.clock.turn(TTL + 1)
    await prune(short)
    with pytest.raises(NotFound):
        await short.view("s")


async def test_what_the_next_batch_of_a_dataset_needs_stays_with_the_dataset(short: Site, tmp_path: Path) -> None:
    await short.dataset("d", 50)
    await short.create(id="a", dataset={"name": "d"}, target=1)
    await short.pool.play(one_all_equal, most=5)
    drawn = (await short.view("a")).drawn
    short.clock.turn(TTL + 1)
    await prune(short)
    assert rows(tmp_path)[0] == 0
    assert (await short.store.batches.histories("default", "d")) != []
    view = await short.create(id="b", dataset={"name": "d"}, target=5)
    assert view.carried_in == drawn - 2, "all but an uninformative group and the delivered one"
    await short.batches.cancel(key("b"), keep=True)
    await short.batches.delete_dataset("default", "d")
    short.clock.turn(TTL + 1)
    await prune(short)
    assert rows(tmp_path) == [0] * len(TABLES)


async def test_tasks_that_another_batch_draws_from_stay(short: Site, tmp_path: Path) -> None:
    same = [task(n).model_dump() for n in range(3)]
    await short.create(id="a", tasks=same, filter=EVERY)
    await short.pool.play(lambda record: Played())
    await short.create(id="b", tasks=same, filter=EVERY, target=2, series="named")
    await short.create(id="c", tasks=same, filter=EVERY, series="a", epochs=2)
    short.clock.turn(TTL + 1)
    await prune(short)
    assert [rows(tmp_path)[i] for i in (0, 2, 3)] == [2, 2, 3], "the series of the first batch is that of the third too"
    await short.pool.play(lambda record: Played())
    short.clock.turn(TTL + 1)
    await prune(short)
    assert rows(tmp_path)[0] == 0
    assert rows(tmp_path)[2:4] == [2, 3], "the named series may go on"


async def test_a_pass_that_fails_anywhere_is_finished_by_the_next(
    short: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pruning, "DELETED_TASKS", 3)
    write, left = Writer.call, 0

    async def fails(self: Writer, change: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unavailable("a failing disk")
        return await write(self, change)  # type: ignore[arg-type]

    for step in range(5):
        await short.create(id=f"b{step}", tasks=[task(n).model_dump() for n in range(10)], filter=EVERY)
        await short.pool.play(lambda record: Played())
        short.clock.turn(TTL + 1)
        left = step + 1  # the newest rollout's own write comes first
        with monkeypatch.context() as failing:
            failing.setattr(Writer, "call", fails)
            with pytest.raises(Unavailable):
                await prune(short)
        await prune(short)
        assert rows(tmp_path) == [0] * len(TABLES), step


async def test_tasks_that_are_deleted_while_they_are_sent_are_sent_again(
    short: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = [task(n).model_dump() for n in range(3)]
    await short.create(id="a", tasks=same, filter=EVERY)
    await short.pool.play(lambda record: Played())
    short.clock.turn(TTL + 1)
    store_tasks = short.batches._store_tasks

    async def pruned_then(digest: str, tasks: list[str]) -> None:
        await store_tasks(digest, tasks)
        await prune(short)

    with monkeypatch.context() as racing:
        racing.setattr(short.batches, "_store_tasks", pruned_then)
        with pytest.raises(Unavailable, match="send the same body again"):
            await short.create(id="b", tasks=same, filter=EVERY)
    await short.create(id="b", tasks=same, filter=EVERY)
    await short.pool.play(lambda record: Played())
    assert await delivered(short, "b") == [1, 2, 3]
