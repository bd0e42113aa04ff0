"""Objects of a resource for lists and watches: the stored ones, and those that follow from them or never change."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from rollyard.api.object_watch import seen_through
from rollyard.api.resources import Resource
from rollyard.api.selectors import Predicate
from rollyard.crds_yaml import generate
from rollyard.kinds.base import KindObject, evolve
from rollyard.kinds.foreign import CustomResourceDefinition, Namespace, definition_of, namespace_of
from rollyard.kinds.registry import KINDS
from rollyard.store.object_store import ObjectStore
from rollyard.store.watch import WatchEvent

Shown = Callable[[WatchEvent], Awaitable[WatchEvent | None]]
DEFAULT = "default"
"""The namespace that always exists."""
_COUNTED = tuple(word for word in KINDS if word != "Event")
_START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
"""Creation time of what is as old as the API itself."""


async def list_objects(
    store: ObjectStore, resource: Resource, namespace: str | None
) -> tuple[Sequence[KindObject], str]:
    """Return the objects, sorted by namespace and name, and the resourceVersion from which to watch."""
    if resource.word in KINDS:
        return await store.list_objects(resource.word, namespace)
    _, version = await store.list_objects(next(iter(KINDS)))
    if resource.kind is CustomResourceDefinition:
        return definitions(), version
    return list((await namespaces(store)).values()) if resource.kind is Namespace else [], version


async def changes_seen(
    store: ObjectStore, resource: Resource, namespace: str | None, passes: Predicate, since: str
) -> Shown:
    """Return a function that returns what a client of this resource sees of a change in the store."""
    if resource.kind is Namespace:
        return await _NamespaceChanges.begin(store, passes, since)

    async def seen(event: WatchEvent) -> WatchEvent | None:
        elsewhere = namespace is not None and event.object.metadata.namespace != namespace
        foreign = event.object.kind != resource.word
        return None if elsewhere or foreign else seen_through(event, passes)

    return seen


async def namespaces(store: ObjectStore) -> Mapping[str, Namespace]:
    """Return the namespaces that contain a pool or an allocation, and `default`."""
    found: dict[str, list[KindObject]] = {DEFAULT: []}
    for word in _COUNTED:
        for obj in (await store.list_objects(word))[0]:
            found.setdefault(obj.metadata.namespace, []).append(obj)
    return {name: namespace_of(name, objects) for name, objects in sorted(found.items())}


@functools.cache
def definitions() -> Sequence[CustomResourceDefinition]:
    return sorted((definition_of(generate.crd(k), _START) for k in generate.KINDS), key=lambda d: d.metadata.name)


class _NamespaceChanges:
    """Namespaces that appear with their first object, and disappear with their last."""

    def __init__(self, store: ObjectStore, passes: Predicate, known: set[str]) -> None:
        self._store, self._passes = store, passes
        self._known = known
        """Namespaces that the client knows. A client gets one that it may know as ADDED again."""

    @classmethod
    async def begin(cls, store: ObjectStore, passes: Predicate, since: str) -> Shown:
        _, version = await store.list_objects(next(iter(KINDS)))
        known = set(await namespaces(store)) if since in ("", "0", version) else set[str]()
        return cls(store, passes, known)._seen

    async def _seen(self, event: WatchEvent) -> WatchEvent | None:
        name = event.object.metadata.namespace
        if event.object.kind not in _COUNTED:
            return None
        if event.type != "DELETED" and name in self._known:
            return None
        there = (await namespaces(self._store)).get(name)
        if there is not None:
            return seen_through(WatchEvent("ADDED", _at(there, event)), self._passes) if self._learn(name) else None
        self._known.discard(name)
        gone = namespace_of(name, [event.object])
        return seen_through(WatchEvent("DELETED", _at(gone, event)), self._passes)

    def _learn(self, name: str) -> bool:
        """Add a name; return whether it is new."""
        new = name not in self._known
        self._known.add(name)
        return new


def _at(namespace: Namespace, event: WatchEvent) -> Namespace:
    version = event.object.metadata.resource_version
    return evolve(namespace, metadata=evolve(namespace.metadata, resource_version=version))
