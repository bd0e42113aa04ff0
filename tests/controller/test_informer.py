"""The local copy follows the store, through gaps too, and tells every change once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from rollyard.controller.informer import Informer
from rollyard.core.errors import Expired
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.store.object_store import ObjectStore
from rollyard.store.watch import WatchEvent
from tests.support.make import rollout_pool
from tests.support.until import until


class GapStore:
    """A real store whose watch, when told, breaks off as one that was away for too long."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.broken = False
        self.lists = 0

    async def list_objects(self, kind: str, namespace: str | None = None) -> Any:
        self.lists += 1
        self.broken = False
        return await self._store.list_objects(kind, namespace)

    async def watch(self, kind: str | None, since: str) -> AsyncIterator[WatchEvent]:
        async for event in self._store.watch(kind, since):
            if self.broken:
                raise Expired("too old")
            yield event


def scaled(pool: RolloutPool, replicas: int) -> RolloutPool:
    return evolve(pool, spec=evolve(pool.spec, replicas=replicas))


def names(informer: Informer[Any]) -> set[str]:
    return {obj.metadata.name for obj in informer.list()}


async def test_it_has_what_was_there_and_follows_what_comes(store: ObjectStore, beside) -> None:
    first = await store.create(rollout_pool("first"))
    informer, seen = Informer(store, RolloutPool), []
    informer.subscribe(lambda old, new: seen.append((old and old.spec.replicas, new and new.spec.replicas)))
    async with beside(informer.run()):
        await until(informer.synced.is_set)
        assert names(informer) == {"first"}
        assert isinstance(first, RolloutPool)
        await store.update(scaled(first, 5), "spec")
        second = await store.create(rollout_pool("second"))
        model = {"metadata": {"name": "second"}, "spec": {"model": {"path": "/m"}, "engine": {"embedded": {}}}}
        await store.create(InferencePool.model_validate({**model, "spec": {**model["spec"], "replicas": 1}}))
        await store.delete(first.key)
        await until(lambda: names(informer) == {"second"})
        assert informer.get(second.key) == second
        assert seen == [(None, 1), (1, 5), (None, 1), (5, None)]


async def test_after_a_gap_the_new_list_tells_what_was_missed(store: ObjectStore, beside) -> None:
    kept, changed, gone = [await store.create(rollout_pool(name)) for name in ("kept", "changed", "gone")]
    gap, seen = GapStore(store), []
    informer = Informer(gap, RolloutPool)
    informer.subscribe(
        lambda old, new: seen.append(((old or new).metadata.name, old is not None, new is not None))  # type: ignore[union-attr]
    )
    async with beside(informer.run()):
        await until(informer.synced.is_set)
        seen.clear()
        gap.broken = True
        assert isinstance(changed, RolloutPool)
        await store.update(scaled(changed, 9), "spec")
        await store.delete(gone.key)
        await store.create(rollout_pool("new"))
        await until(lambda: names(informer) == {"kept", "changed", "new"})
        assert gap.lists == 2
        assert sorted(seen) == [("changed", True, True), ("gone", True, False), ("new", False, True)]
        assert informer.get(kept.key) == kept
