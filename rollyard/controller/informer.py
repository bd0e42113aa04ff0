"""A local copy of all objects of one kind, updated by list and watch. Each change calls handlers.

The copy lags behind the store by a moment. This is safe for two reasons. Every update carries the resourceVersion on
which the decision was based. After a create or delete, controllers wait until the copy shows the change
(`expectations`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rollyard.core.errors import ApiError, Expired
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KindObject)
Handler = Callable[[T | None, T | None], None]
"""Function of the object before and after a change: (None, new), (old, new) or (old, None). It must not block."""

RETRY_SECONDS = 1.0


class Informer(Generic[T]):
    """Copy of all objects of one kind. Read the copy only after `synced` is set."""

    def __init__(self, store: ObjectStore, kind: type[T], owner: Callable[[T], str] = lambda obj: "") -> None:
        """`owner`: function that names the owner of an object. An object's owner must never change."""
        self.kind = kind
        self.synced = asyncio.Event()
        self._store = store
        self._name: str = kind.model_fields["kind"].default
        self._objects: dict[ObjectKey, T] = {}
        self._owner = owner
        self._owned: dict[str, dict[ObjectKey, T]] = {}
        self._handlers: list[Handler[T]] = []

    def subscribe(self, handler: Handler[T]) -> None:
        self._handlers.append(handler)

    def get(self, key: ObjectKey) -> T | None:
        return self._objects.get(key)

    def list(self) -> list[T]:
        return list(self._objects.values())

    def of(self, owner: str) -> Sequence[T]:
        """Return the objects that belong to `owner`, without a search through all objects."""
        return list(self._owned.get(owner, {}).values())

    async def run(self) -> None:
        """Follow the store without end.

        After a failure, the watch continues at its last version. If this version is too old, all objects are listed
        again.
        """
        since: str | None = None
        while True:
            try:
                if since is None:
                    since = await self._relist()
                async for event in self._store.watch(self._name, since):
                    since = event.object.metadata.resource_version
                    self._put(event.object.key, None if event.type == "DELETED" else self._typed(event.object))
            except Expired:
                since = None
                continue
            except ApiError as error:
                log.warning("watch of %s: %s; next try in %g s", self._name, error, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    async def _relist(self) -> str:
        objects, version = await self._store.list_objects(self._name)
        listed = {obj.key: self._typed(obj) for obj in objects}
        for gone in self._objects.keys() - listed.keys():
            self._put(gone, None)
        for key, obj in listed.items():
            old = self._objects.get(key)
            if old is None or old.metadata.resource_version != obj.metadata.resource_version:
                self._put(key, obj)
        self.synced.set()
        return version

    def _put(self, key: ObjectKey, new: T | None) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            siblings = self._owned[self._owner(old)]
            del siblings[key]
            if not siblings:
                del self._owned[self._owner(old)]
        if new is not None:
            self._objects[key] = new
            self._owned.setdefault(self._owner(new), {})[key] = new
        if old is None and new is None:
            return
        for handler in self._handlers:
            handler(old, new)

    def _typed(self, obj: KindObject) -> T:
        if not isinstance(obj, self.kind):
            raise TypeError(f"the store answered {type(obj).__name__} for {self._name}")
        return obj
