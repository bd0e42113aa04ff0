"""Any sequence of operations does to the store what it does to a dictionary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.core.errors import AlreadyExists, ApiError, Conflict, NotFound
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec, RolloutPoolStatus
from rollyard.store.store import Store
from tests.support.make import rollout_pool

Verb = Literal["create", "update", "status", "delete"]


@dataclass(frozen=True)
class Operation:
    verb: Verb
    name: str
    value: int
    finalizer: bool
    stale: bool
    """With a resourceVersion that is not the current one."""


@dataclass(frozen=True)
class Expected:
    replicas: int
    next_index: int = 0
    finalizer: bool = False
    generation: int = 1
    deleting: bool = False


@dataclass
class Model:
    objects: dict[str, Expected] = field(default_factory=dict)
    changes: list[tuple[str, str]] = field(default_factory=list)

    def apply(self, op: Operation) -> type[ApiError] | None:
        """Apply the operation; return the error that the store must raise, if any."""
        now = self.objects.get(op.name)
        if op.verb == "create":
            if now is not None:
                return AlreadyExists
            return self._write("ADDED", op.name, Expected(op.value, finalizer=op.finalizer))
        if now is None:
            return NotFound
        if op.verb == "delete":
            return self._write("MODIFIED", op.name, replace(now, deleting=True))
        if op.stale:
            return Conflict
        if op.verb == "status":
            return self._write("MODIFIED", op.name, replace(now, next_index=op.value))
        generation = now.generation + (op.value != now.replicas)
        finalizer = op.finalizer and (now.finalizer or not now.deleting)  # none is added while it is being deleted
        return self._write(
            "MODIFIED", op.name, replace(now, replicas=op.value, finalizer=finalizer, generation=generation)
        )

    def _write(self, change: str, name: str, new: Expected) -> None:
        if new == self.objects.get(name):
            return
        if new.deleting and not new.finalizer:
            del self.objects[name]
            change = "DELETED"
        else:
            self.objects[name] = new
        self.changes.append((change, name))


OPERATIONS = st.builds(
    Operation,
    verb=st.sampled_from(["create", "update", "status", "delete"]),
    name=st.sampled_from(["a", "b", "c"]),
    value=st.integers(0, 2),
    finalizer=st.booleans(),
    stale=st.sampled_from([False, False, True]),
)


async def carry_out(store: Store, namespace: str, op: Operation, model: Model) -> None:
    key = ObjectKey(kind="RolloutPool", namespace=namespace, name=op.name)
    if op.verb == "delete":
        await store.objects.delete(key)
        return
    before = model.objects.get(op.name)
    metadata: dict[str, Any] = {"resource_version": "999999999"} if op.stale else {}
    if op.finalizer and not (before and before.deleting and not before.finalizer):
        metadata["finalizers"] = ["a/b"]
    obj = rollout_pool(op.name, replicas=op.value, metadata={"namespace": namespace, **metadata})
    if op.verb == "create":
        await store.objects.create(obj)
    elif op.verb == "update":
        await store.objects.update(obj, "spec")
    else:
        await store.objects.update(evolve(obj, status=RolloutPoolStatus(next_index=op.value)), "status")


def state_of(obj: RolloutPool) -> Expected:
    assert isinstance(obj.spec, RolloutPoolSpec)
    return Expected(
        replicas=obj.spec.replicas or 0,
        next_index=obj.status.next_index,
        finalizer=bool(obj.metadata.finalizers),
        generation=obj.metadata.generation,
        deleting=obj.metadata.deletion_timestamp is not None,
    )


async def check(store: Store, namespace: str, operations: list[Operation]) -> None:
    model = Model()
    watch = store.objects.watch("RolloutPool", (await store.objects.list_objects("RolloutPool"))[1])
    for op in operations:
        before = replace(model.objects[op.name]) if op.name in model.objects else None
        copy = Model({op.name: before} if before else {})
        wanted = model.apply(op)
        if wanted is None:
            await carry_out(store, namespace, op, copy)
        else:
            with pytest.raises(wanted):
                await carry_out(store, namespace, op, copy)
    found, version = await store.objects.list_objects("RolloutPool", namespace)
    assert {o.metadata.name: state_of(o) for o in found if isinstance(o, RolloutPool)} == model.objects
    seen = [await asyncio.wait_for(anext(watch), 60) for _ in model.changes]
    assert [(e.type, e.object.metadata.name) for e in seen] == model.changes
    if seen:
        assert seen[-1].object.metadata.resource_version == version


def test_the_store_does_what_a_dictionary_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    with asyncio.Runner() as runner:
        store = runner.run(Store.open(folder))
        examples = iter(range(1_000_000))

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(OPERATIONS, max_size=25))
        def run(operations: list[Operation]) -> None:
            runner.run(check(store, f"n{next(examples)}", operations))

        run()
        runner.run(store.close())
