"""Each outcome of a reconcile leads where it should, and a change is never missed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from rollyard.controller.informer import Informer
from rollyard.controller.manager import Controller, Done, Manager, RequeueAfter
from rollyard.controller.work_queue import WorkQueue
from rollyard.core.errors import Conflict, Invalid, NotFound, RollyardError, SlurmUnreachable
from rollyard.core.telemetry import RECONCILES
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.store.object_store import ObjectStore
from tests.support.make import rollout_pool
from tests.support.until import until


class Scripted:
    """Answers for each key what it was told to, one after the other; then Done."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Done | RequeueAfter | BaseException]] = {}
        self.seen: Counter[str] = Counter()
        self.gave: dict[str, str] = {}
        self.at: dict[str, list[float]] = {}

    async def reconcile(self, key: ObjectKey) -> Done | RequeueAfter:
        self.seen[key.name] += 1
        self.at.setdefault(key.name, []).append(asyncio.get_running_loop().time())
        answers = self.answers.get(key.name)
        answer = answers.pop(0) if answers else Done()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def gave_up(self, key: ObjectKey, error: RollyardError) -> None:
        self.gave[key.name] = str(error)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def pools(store: ObjectStore) -> Informer[RolloutPool]:
    return Informer(store, RolloutPool)


@pytest.fixture
def manager(pools: Informer[RolloutPool], scripted: Scripted) -> Iterator[Manager]:
    queue: WorkQueue[ObjectKey] = WorkQueue(base_seconds=0.005, cap_seconds=0.02)
    manager = Manager([pools], [Controller("RolloutPool", scripted, queue)])
    pools.subscribe(lambda old, new: manager.add(new.key) if new else None)
    yield manager
    queue.close()


def outcomes() -> dict[str, float]:
    words = ("done", "again", "retry", "gaveup")
    return {word: RECONCILES.labels("RolloutPool", word)._value.get() for word in words}


def since(before: dict[str, float]) -> dict[str, float]:
    return {word: value - before[word] for word, value in outcomes().items() if value != before[word]}


async def test_what_is_there_at_the_start_and_what_comes_later_is_reconciled(
    store: ObjectStore, scripted: Scripted, manager: Manager, beside
) -> None:
    await store.create(rollout_pool("before"))
    async with beside(manager.run()):
        await until(lambda: scripted.seen["before"] > 0)
        await store.create(rollout_pool("after"))
        await until(lambda: scripted.seen["after"] > 0)
        manager.add(ObjectKey(kind="Nothing", namespace="default", name="x"))


@pytest.mark.parametrize(
    ("error", "many"),
    [
        (Conflict("written in between"), 3),
        (SlurmUnreachable("no answer"), 3),
        (NotFound("not yet"), 2),
        (OSError("disk full"), 2),
        (TimeoutError(), 2),
    ],
)
async def test_what_may_go_well_next_time_is_tried_again(
    error: Exception, many: int, store: ObjectStore, scripted: Scripted, manager: Manager, beside
) -> None:
    before = outcomes()
    scripted.answers["p"] = [error] * many
    async with beside(manager.run()):
        await store.create(rollout_pool("p"))
        await until(lambda: since(before).get("done", 0) == 1)
    assert since(before) == {"retry": many, "done": 1}
    assert not scripted.gave


async def test_what_is_wrong_in_itself_is_told_and_left_until_it_changes(
    store: ObjectStore, scripted: Scripted, pools: Informer[RolloutPool], manager: Manager, beside
) -> None:
    scripted.answers["p"] = [Invalid("the name is too long; write a shorter one")]
    async with beside(manager.run()):
        await until(pools.synced.is_set)  # an object of the first list is reconciled by the first resync too
        pool = await store.create(rollout_pool("p"))
        await until(lambda: "p" in scripted.gave)
        assert scripted.gave == {"p": "the name is too long; write a shorter one"}
        await asyncio.sleep(0.05)
        assert scripted.seen["p"] == 1
        assert isinstance(pool, RolloutPool)
        spec = evolve(pool.spec, replicas=2)
        await store.update(evolve(pool, spec=spec), "spec")
        await until(lambda: scripted.seen["p"] == 2)


async def test_again_comes_back_after_its_time(
    store: ObjectStore, scripted: Scripted, pools: Informer[RolloutPool], manager: Manager, beside
) -> None:
    scripted.answers["p"] = [RequeueAfter(0.1)]
    async with beside(manager.run()):
        await until(pools.synced.is_set)
        await store.create(rollout_pool("p"))
        await until(lambda: scripted.seen["p"] == 2)
    first, second = scripted.at["p"]
    assert second - first >= 0.099


async def test_every_object_is_looked_at_now_and_then_without_a_change(
    store: ObjectStore, scripted: Scripted, beside
) -> None:
    await store.create(rollout_pool("p"))
    manager = Manager([Informer(store, RolloutPool)], [Controller("RolloutPool", scripted)], resync_seconds=0.02)
    async with beside(manager.run()):
        await until(lambda: scripted.seen["p"] >= 3)


async def test_a_key_is_never_reconciled_by_two_workers_together(store: ObjectStore, beside) -> None:
    class Slow(Scripted):
        inside = 0

        async def reconcile(self, key: ObjectKey) -> Done | RequeueAfter:
            self.inside += 1
            assert self.inside == 1
            await asyncio.sleep(0.01)
            self.inside -= 1
            return await super().reconcile(key)

    slow, pools = Slow(), Informer(store, RolloutPool)
    manager = Manager([pools], [Controller("RolloutPool", slow, workers=8)], resync_seconds=0.002)
    await store.create(rollout_pool("p"))
    async with beside(manager.run()):
        await until(lambda: slow.seen["p"] >= 5)


async def test_what_runs_beside_starts_after_the_first_list_and_ends_with_the_manager(
    store: ObjectStore, scripted: Scripted, beside: Callable
) -> None:
    await store.create(rollout_pool("p"))
    pools, told = Informer(store, RolloutPool), []

    async def work() -> None:
        told.append([p.metadata.name for p in pools.list()])
        try:
            await asyncio.Event().wait()
        finally:
            told.append("over")

    async with beside(Manager([pools], [Controller("RolloutPool", scripted)], beside=[work]).run()):
        await until(lambda: bool(told))
    assert told == [["p"], "over"]
