from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rollyard.core.clock import as_datetime
from rollyard.core.errors import AlreadyExists, Conflict, Invalid, MethodNotAllowed, NotFound, Unavailable
from rollyard.kinds.base import ObjectKey, ObjectMeta, evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec, RolloutPoolStatus
from rollyard.store.store import Store
from tests.support.make import event, rollout_pool
from tests.support.manual_clock import ManualClock

KEY = ObjectKey(kind="RolloutPool", namespace="default", name="swe")


def with_metadata(obj: RolloutPool, **changes: object) -> RolloutPool:
    return evolve(obj, metadata=evolve(obj.metadata, **changes))


def with_replicas(obj: RolloutPool, replicas: int) -> RolloutPool:
    return evolve(obj, spec=RolloutPoolSpec(replicas=replicas))


async def create(store: Store, obj: RolloutPool) -> RolloutPool:
    made = await store.objects.create(obj)
    assert isinstance(made, RolloutPool)
    return made


async def test_create_gives_identity_and_is_read_back(store: Store, clock: ManualClock) -> None:
    made = await create(store, rollout_pool(metadata={"uid": "mine", "generation": 7, "resource_version": "99"}))
    assert made.metadata.uid not in ("", "mine")
    assert (made.metadata.generation, made.metadata.resource_version) == (1, "1")
    assert made.metadata.creation_timestamp == as_datetime(clock.time())
    assert await store.objects.get(KEY) == made


async def test_create_twice_is_refused_in_kubectls_words(store: Store) -> None:
    await store.objects.create(rollout_pool(metadata={"finalizers": ["a/b"]}))
    with pytest.raises(AlreadyExists, match=r'^rolloutpools.rollyard.dev "swe" already exists$'):
        await store.objects.create(rollout_pool())
    await store.objects.delete(KEY)
    with pytest.raises(AlreadyExists, match=r"^object is being deleted: "):
        await store.objects.create(rollout_pool())


async def test_absent_objects_are_not_found(store: Store) -> None:
    for call in (
        store.objects.get(KEY),
        store.objects.delete(KEY),
        store.objects.update(rollout_pool(), "spec"),
        store.objects.update(rollout_pool(), "status"),
    ):
        with pytest.raises(NotFound, match=r'^rolloutpools.rollyard.dev "swe" not found$'):
            await call


async def test_generation_moves_with_spec_only(store: Store) -> None:
    made = await create(store, rollout_pool())
    labelled = await store.objects.update(with_metadata(made, labels={"a": "b"}), "spec")
    assert (labelled.metadata.generation, labelled.metadata.labels) == (1, {"a": "b"})
    scaled = await store.objects.update(with_replicas(with_metadata(labelled), 3), "spec")  # type: ignore[arg-type]
    assert scaled.metadata.generation == 2
    observed = RolloutPoolStatus(observed_generation=2)
    said = await store.objects.update(evolve(scaled, status=observed), "status")
    assert said.metadata.generation == 2
    assert [o.metadata.resource_version for o in (made, labelled, scaled, said)] == ["1", "2", "3", "4"]


async def test_spec_and_status_are_written_apart(store: Store) -> None:
    made = await create(store, rollout_pool())
    both = evolve(with_replicas(made, 5), status=RolloutPoolStatus(next_index=9))
    after = await store.objects.update(with_metadata(both, resource_version="", labels={"x": "y"}), "status")
    assert isinstance(after, RolloutPool)
    assert (after.spec.replicas, after.status.next_index, after.metadata.labels) == (1, 9, {})
    after = await store.objects.update(
        evolve(with_replicas(made, 5), metadata=evolve(made.metadata, resource_version="")),
        "spec",
    )
    assert isinstance(after, RolloutPool)
    assert (after.spec.replicas, after.status.next_index) == (5, 9)


async def test_nothing_is_written_when_nothing_changes(store: Store) -> None:
    made = await create(store, rollout_pool())
    assert await store.objects.update(made, "spec") is not made
    for part in ("spec", "status"):
        assert await store.objects.update(rollout_pool(), part) == made  # type: ignore[arg-type]
    assert (await store.objects.list_objects("RolloutPool"))[1] == "1"


async def test_an_older_version_is_refused(store: Store) -> None:
    made = await create(store, rollout_pool())
    await store.objects.update(with_replicas(made, 2), "spec")
    with pytest.raises(Conflict, match="the object has been modified"):
        await store.objects.update(with_replicas(made, 3), "spec")
    with pytest.raises(Conflict, match="the object has been modified"):
        await store.objects.update(made, "status")


async def test_another_objects_uid_is_refused(store: Store) -> None:
    first = await create(store, rollout_pool())
    await store.objects.delete(KEY)
    await store.objects.create(rollout_pool())
    stale = with_metadata(first, resource_version="")
    with pytest.raises(Conflict, match="has replaced it"):
        await store.objects.update(stale, "status")
    with pytest.raises(Conflict, match="has replaced it"):
        await store.objects.delete(KEY, uid=first.metadata.uid)


async def test_of_many_writers_on_one_version_one_wins(store: Store) -> None:
    made = await create(store, rollout_pool())
    calls = [store.objects.update(with_replicas(made, n), "spec") for n in range(2, 22)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(r, Conflict) for r in results) == 19
    assert await store.objects.get(KEY) in results


async def test_finalizers_hold_a_deleted_object(store: Store, clock: ManualClock) -> None:
    await store.objects.create(rollout_pool(metadata={"finalizers": ["a/b", "c/d"]}))
    clock.turn(60)
    going = await store.objects.delete(KEY)
    assert going.metadata.deletion_timestamp == as_datetime(clock.time())
    clock.turn(60)
    assert await store.objects.delete(KEY) == going
    half = await store.objects.update(with_metadata(going, finalizers=["c/d"]), "spec")  # type: ignore[arg-type]
    assert await store.objects.get(KEY) == half
    last = await store.objects.update(with_metadata(half, finalizers=[]), "spec")  # type: ignore[arg-type]
    assert int(last.metadata.resource_version) > int(half.metadata.resource_version)
    with pytest.raises(NotFound):
        await store.objects.get(KEY)


async def test_a_deleted_object_gets_no_new_finalizer(store: Store) -> None:
    await store.objects.create(rollout_pool(metadata={"finalizers": ["a/b"]}))
    going = await store.objects.delete(KEY)
    with pytest.raises(Invalid, match="no new finalizer") as caught:
        await store.objects.update(with_metadata(going, finalizers=["a/b", "c/d"]), "spec")  # type: ignore[arg-type]
    assert caught.value.causes[0].field == "metadata.finalizers"


async def test_lists_are_by_namespace_and_name(store: Store) -> None:
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        await store.objects.create(rollout_pool(name, metadata={"namespace": namespace}))
    await store.objects.create(event("e"))
    found, version = await store.objects.list_objects("RolloutPool")
    assert [(o.metadata.namespace, o.metadata.name) for o in found] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert version == "4"
    assert [o.metadata.name for o in (await store.objects.list_objects("RolloutPool", "a"))[0]] == ["y", "z"]
    assert await store.objects.list_objects("InferencePool") == ([], "4")


async def test_what_the_caller_keeps_is_not_what_is_stored(store: Store) -> None:
    given = rollout_pool(metadata={"labels": {"a": "b"}})
    await store.objects.create(given)
    given.metadata.labels["a"] = "changed"
    assert (await store.objects.get(KEY)).metadata.labels == {"a": "b"}


async def test_an_object_that_breaks_its_own_rules_is_not_stored(store: Store) -> None:
    broken = evolve(rollout_pool(), metadata=ObjectMeta.model_construct(name="No Name", namespace="default"))
    with pytest.raises(ValueError, match="pattern"):
        await store.objects.create(broken)
    assert await store.objects.list_objects("RolloutPool") == ([], "0")


async def test_events_have_content_and_no_status(store: Store) -> None:
    made = await store.objects.create(event("e"))
    again = event("e", at=1_700_000_100, count=2)
    counted = await store.objects.update(again, "spec")
    assert counted.metadata.generation == 2
    assert evolve(counted, metadata=made.metadata) == evolve(again, metadata=made.metadata)
    with pytest.raises(MethodNotAllowed, match="events have no status"):
        await store.objects.update(again, "status")


async def test_old_events_are_pruned_and_the_deletion_is_logged(store: Store) -> None:
    for n in range(4):
        await store.objects.create(event(f"e{n}", at=1_700_000_000 + n))
    watch = store.objects.watch("Event", (await store.objects.list_objects("Event"))[1])
    assert await store.objects.prune_events(1_700_000_002) == 2
    assert [o.metadata.name for o in (await store.objects.list_objects("Event"))[0]] == ["e2", "e3"]
    assert {(e.type, e.object.metadata.name) for e in [await anext(watch), await anext(watch)]} == {
        ("DELETED", "e0"),
        ("DELETED", "e1"),
    }


async def test_an_object_of_another_kind_than_the_caller_expects_is_an_error(store: Store) -> None:
    await store.objects.create(rollout_pool("swe"))
    assert (await store.objects.get(KEY, RolloutPool)).metadata.name == "swe"
    assert await store.objects.get(KEY, (InferencePool, RolloutPool)) == await store.objects.get(KEY)
    with pytest.raises(TypeError, match="rolloutpool/default/swe is a RolloutPool, not a"):
        await store.objects.get(KEY, InferencePool)


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    kept = await create(store, rollout_pool("kept"))
    changed = await store.objects.update(with_replicas(await create(store, rollout_pool("changed")), 4), "spec")
    await store.objects.create(rollout_pool("gone"))
    await store.objects.delete(ObjectKey(kind="RolloutPool", namespace="default", name="gone"))
    before = await store.objects.list_objects("RolloutPool")
    await store.close()
    store = await Store.open(tmp_path)
    assert await store.objects.list_objects("RolloutPool") == before == ([changed, kept], "5")
    assert (await store.objects.create(rollout_pool("new"))).metadata.resource_version == "6"
    await store.close()


async def test_a_status_that_another_release_wrote_is_no_obstacle(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.objects.create(rollout_pool("kept", replicas=3))
    await store.close()
    with closing(sqlite3.connect(tmp_path / "rollyard.db")) as db, db:
        for path in ("$.status.another", "$.status.replicas.another"):
            db.execute(f"UPDATE objects SET body = json_set(body, '{path}', 1)")
    store = await Store.open(tmp_path)
    (kept,), _ = await store.objects.list_objects("RolloutPool")
    assert isinstance(kept, RolloutPool)
    assert kept.spec.replicas == 3
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.objects.create(rollout_pool())
    with pytest.raises(Unavailable, match="closed"):
        await store.rollouts.get("default", "r")
    with pytest.raises(Unavailable, match="closed"):
        store.objects.watch(None, "0")


async def test_a_delete_with_another_resource_version_is_a_conflict(store: Store) -> None:
    pool = await store.objects.create(rollout_pool("versioned"))
    with pytest.raises(Conflict, match="the object has been modified"):
        await store.objects.delete(pool.key, version="999")
    await store.objects.delete(pool.key, uid=pool.metadata.uid, version=pool.metadata.resource_version)
