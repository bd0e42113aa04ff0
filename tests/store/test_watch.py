from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollyard.core.errors import BadRequest, Expired, Unavailable
from rollyard.kinds.base import ObjectKey, ObjectMeta
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.store import objects as objects_module
from rollyard.store import watch as watch_module
from rollyard.store.store import Store
from rollyard.store.watch import WatchEvent
from tests.support.make import event, rollout_pool

KEPT_CHANGES = 2000


def version(event: WatchEvent) -> int:
    return int(event.object.metadata.resource_version)


async def take(store: Store, since: int | str, count: int, kind: str | None = None) -> list[WatchEvent]:
    watch = store.objects.watch(kind, str(since))
    async with asyncio.timeout(60):
        return [await anext(watch) for _ in range(count)]


async def test_changes_come_in_order_and_without_a_gap(store: Store) -> None:
    watching = asyncio.create_task(take(store, 0, 60))
    await asyncio.gather(*(store.objects.create(rollout_pool(f"p{n}")) for n in range(30)))
    await asyncio.gather(
        *(store.objects.delete(ObjectKey(kind="RolloutPool", namespace="default", name=f"p{n}")) for n in range(30))
    )
    events = await watching
    assert [version(e) for e in events] == list(range(1, 61))
    assert [e.type for e in events] == ["ADDED"] * 30 + ["DELETED"] * 30


async def test_listing_then_watching_misses_nothing(store: Store) -> None:
    """Against writers that never pause: what was listed plus what is watched is what is there."""
    writing = asyncio.gather(*(store.objects.create(rollout_pool(f"p{n}")) for n in range(50)))
    for _ in range(3):
        await asyncio.sleep(0)
    listed, since = await store.objects.list_objects("RolloutPool")
    await writing
    rest = await take(store, since, 50 - len(listed), "RolloutPool")
    names = [o.metadata.name for o in listed] + [e.object.metadata.name for e in rest]
    assert sorted(names) == sorted(f"p{n}" for n in range(50))


async def test_a_kind_is_watched_alone(store: Store) -> None:
    await store.objects.create(event("e0"))
    await store.objects.create(rollout_pool("p"))
    await store.objects.create(event("e1"))
    assert [e.object.metadata.name for e in await take(store, 0, 2, "Event")] == ["e0", "e1"]
    assert [e.object.metadata.name for e in await take(store, 0, 3)] == ["e0", "p", "e1"]


async def test_waiting_may_be_cancelled_and_begun_again(store: Store) -> None:
    watch = store.objects.watch(None, "0")
    for n in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.001)
        await store.objects.create(rollout_pool(f"p{n}"))
        await store.objects.create(rollout_pool(f"q{n}"))
        assert [version(await anext(watch)), version(await anext(watch))] == [2 * n + 1, 2 * n + 2]


async def test_a_watch_resumes_after_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    for n in range(10):
        await store.objects.create(rollout_pool(f"p{n}"))
    before = await take(store, 0, 10)
    await store.close()
    store = await Store.open(tmp_path)
    await store.objects.create(rollout_pool("p10"))
    after = await take(store, 4, 7)
    assert after[:6] == before[4:]
    assert after[6].object.metadata.name == "p10"
    await store.close()


async def test_a_slow_watcher_reads_the_log_and_holds_up_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "IN_MEMORY", 7)
    watch = store.objects.watch(None, "0")
    await store.objects.create(event("e"))
    assert version(await anext(watch)) == 1
    for n in range(2, 1200):
        await store.objects.update(event("e", count=n), "spec")
    assert [version(await anext(watch)) for _ in range(2, 1200)] == list(range(2, 1200))
    await store.objects.create(event("last"))
    assert (await anext(watch)).object.metadata.name == "last"


async def test_a_watch_from_too_long_ago_is_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (watch_module, objects_module):
        monkeypatch.setattr(module, "KEPT_CHANGES", KEPT_CHANGES)
    store = await Store.open(tmp_path)
    sleeper = store.objects.watch(None, "0")
    await store.objects.create(event("e"))
    for start in range(0, KEPT_CHANGES + 1001, 1000):
        await asyncio.gather(*(store.objects.update(event("e", count=start + n + 2), "spec") for n in range(1000)))
    latest = int((await store.objects.list_objects("Event"))[1])
    with pytest.raises(Expired, match="list again"):
        await anext(sleeper)
    for _ in ("before a restart", "after it"):
        with pytest.raises(Expired, match="list again"):
            store.objects.watch(None, "0")
        assert len(await take(store, latest - KEPT_CHANGES, KEPT_CHANGES)) == KEPT_CHANGES
        await store.close()
        store = await Store.open(tmp_path)
    await store.close()


async def test_versions_that_the_store_never_gave_are_refused(store: Store) -> None:
    with pytest.raises(BadRequest, match="resourceVersion 'abc' is not a valid one"):
        store.objects.watch(None, "abc")
    with pytest.raises(Expired, match="list again"):
        store.objects.watch(None, "7")


async def test_closing_ends_every_watch(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    watching = [asyncio.create_task(take(store, 0, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    for task in watching:
        with pytest.raises(Unavailable, match="closed"):
            await task


async def test_a_change_comes_with_the_object_before_it(store: Store) -> None:
    first = await store.objects.create(rollout_pool("p"))
    second = await store.objects.update(first.model_copy(update={"metadata": _labelled(first)}), "spec")
    await store.objects.delete(second.key)
    events = await take(store, 0, 3, "RolloutPool")
    assert [(e.type, e.before) for e in events] == [("ADDED", None), ("MODIFIED", first), ("DELETED", second)]


def _labelled(pool: RolloutPool) -> ObjectMeta:
    return pool.metadata.model_copy(update={"labels": {"team": "a"}})
