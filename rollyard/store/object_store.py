"""Objects with resourceVersions and watches. They are read from memory; the writer changes them on disk first."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeVar, cast, overload

from rollyard.core.clock import Clock, as_datetime
from rollyard.core.errors import NotFound
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.event import Event
from rollyard.store import objects
from rollyard.store.watch import Watch, WatchFeed
from rollyard.store.writer import Writer

K = TypeVar("K", bound=KindObject)
L = TypeVar("L", bound=KindObject)
PRUNE_CHUNK = 500


class ObjectStore:
    def __init__(self, feed: WatchFeed, writer: Writer, clock: Clock) -> None:
        self._feed = feed
        self._writer = writer
        self._clock = clock

    async def create(self, obj: K) -> K:
        """Store a new object. The store sets its uid, generation (1), resourceVersion and creationTimestamp. Raises
        AlreadyExists."""
        now = as_datetime(self._clock.time())
        return cast(K, await self._writer.call(lambda unit: objects.create(unit, obj, now)))

    @overload
    async def get(self, key: ObjectKey) -> KindObject: ...
    @overload
    async def get(self, key: ObjectKey, kind: type[K]) -> K: ...
    @overload
    async def get(self, key: ObjectKey, kind: tuple[type[K], type[L]]) -> K | L: ...
    async def get(self, key: ObjectKey, kind: Any = KindObject) -> Any:
        """Return the object. `kind`: one or two classes that the caller expects, as for isinstance.

        Raises NotFound with kubectl's text, and TypeError if the object has another class.
        """
        found = self._feed.get(key)
        if found is None:
            raise NotFound(f"{objects.describe(key)} not found")
        if not isinstance(found, kind):
            raise TypeError(f"{key} is a {type(found).__name__}, not a {kind}")
        return found

    async def list_objects(self, kind: str, namespace: str | None = None) -> tuple[list[KindObject], str]:
        """All objects of a kind, in order of namespace and name, and the resourceVersion from which to watch."""
        return self._feed.of_kind(kind, namespace), str(self._feed.version)

    async def update(self, obj: K, part: Literal["spec", "status"]) -> K:
        """Write the spec with the metadata (labels, annotations, finalizers, owner references), or only the status.

        The generation grows if the spec changes. An update without changes is not written. An object that is being
        deleted disappears with its last finalizer.

        Raises NotFound; Conflict if a given resourceVersion or uid is not the current one; Invalid for a new finalizer on
        an object that is being deleted; MethodNotAllowed if the kind has no status.
        """
        return cast(K, await self._writer.call(lambda unit: objects.update(unit, obj, part)))

    async def delete(self, key: ObjectKey, *, uid: str = "", version: str = "") -> KindObject:
        """Remove the object, or set its deletionTimestamp if it has finalizers. Return the object's last state.

        Raises NotFound, and Conflict if the object has another uid or resourceVersion than a given one.
        """
        now = as_datetime(self._clock.time())
        return await self._writer.call(lambda unit: objects.delete(unit, key, uid, version, now))

    async def prune_events(self, older_than: float) -> int:
        """Delete the Events that last occurred before `older_than` (Unix seconds); return how many."""
        events = self._feed.of_kind("Event")
        old = [e for e in events if isinstance(e, Event) and e.last_timestamp.timestamp() < older_than]
        pruned = 0
        for start in range(0, len(old), PRUNE_CHUNK):
            chunk = old[start : start + PRUNE_CHUNK]
            pruned += await self._writer.call(partial(objects.delete_unchanged, objects=chunk))
        return pruned

    def watch(self, kind: str | None, since: str) -> Watch:
        """Iterate over every change after `since`, in order and without a gap.

        `kind`: only changes of this kind; None for all kinds. A caller may cancel its wait for the next change and wait
        again; no change is lost.

        Raises BadRequest if `since` is not a resourceVersion. Raises Expired if the changes after `since` are no longer
        kept, or if `since` is newer than the last change. Raises Unavailable if the store is closed. The iterator can
        raise Expired and Unavailable as well.
        """
        return Watch(self._feed, kind, since)
