"""Committed objects and their recent changes, in memory, for readers and watchers. Only the event loop's thread uses
them.

The objects and the latest version change together, so a watch from the version of a list misses no change. Each watcher
has its own position. A slow watcher reads the log on disk, and does not delay other watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rollyard.core.errors import BadRequest, Expired, Unavailable
from rollyard.kinds.base import KindObject, ObjectKey

KEPT_CHANGES = 10_000
"""The log keeps at least this many changes, so a watch may begin this many changes in the past."""
IN_MEMORY = 1000
"""Number of changes kept in memory. A watcher that is further behind reads the log."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: KindObject
    """The object. For DELETED: the last state of the object, with the resourceVersion of the deletion."""
    before: KindObject | None = None
    """The object before the change; None for a new object, and for a change that was read from the log on disk."""


ReadLog = Callable[[int], Awaitable[list[tuple[int, WatchEvent]]]]
"""Function that takes a version, and reads the later changes from the log on disk."""


class WatchFeed:
    """All objects, and the recent changes. The writer publishes the changes of each commit here."""

    def __init__(self, objects: Iterable[KindObject], version: int, oldest: int, read_log: ReadLog) -> None:
        self._view: dict[str, dict[ObjectKey, KindObject]] = {}
        for obj in objects:
            self._view.setdefault(obj.kind, {})[obj.key] = obj
        self.version = version
        self.read_log = read_log
        self._oldest = oldest
        self._recent: dict[int, WatchEvent] = {}
        self._published = asyncio.Event()
        self._closed = False

    def publish(self, events: list[WatchEvent]) -> None:
        for event in events:
            objects = self._view.setdefault(event.object.kind, {})
            event = replace(event, before=objects.get(event.object.key))
            if event.type == "DELETED":
                objects.pop(event.object.key, None)
            else:
                objects[event.object.key] = event.object
            self.version = int(event.object.metadata.resource_version)
            self._recent[self.version] = event
            self._recent.pop(self.version - IN_MEMORY, None)
        self._oldest = max(self._oldest, self.version - KEPT_CHANGES)
        if events:
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def get(self, key: ObjectKey) -> KindObject | None:
        return self._view.get(key.kind, {}).get(key)

    def of_kind(self, kind: str, namespace: str | None = None) -> list[KindObject]:
        """Objects of a kind, sorted by namespace and name."""
        found = [o for k, o in self._view.get(kind, {}).items() if namespace is None or k.namespace == namespace]
        return sorted(found, key=lambda o: (o.metadata.namespace, o.metadata.name))

    def recent(self, version: int) -> WatchEvent | None:
        return self._recent.get(version)

    def check(self, position: int) -> None:
        """Raise Expired if a watch cannot continue from this position, and Unavailable if the feed is closed."""
        if self._closed:
            raise Unavailable("the store is closed")
        if not self._oldest <= position <= self.version:
            raise Expired(
                f"resourceVersion {position} is not within {self._oldest}..{self.version}, which can be watched; list again"
            )

    async def changed(self, position: int) -> None:
        """Wait until there is a change after this position, or until the feed is closed."""
        while self.version == position and not self._closed:
            await self._published.wait()


class Watch:
    """One watcher's position in the feed. The position moves only after a change was read, so a cancelled wait loses no
    change."""

    def __init__(self, feed: WatchFeed, kind: str | None, since: str) -> None:
        if not since.isdecimal():
            raise BadRequest(f"resourceVersion {since!r} is not a valid one; send one that a list or an object had")
        self._feed = feed
        self._kind = kind
        self._position = int(since)
        self._chunk: dict[int, WatchEvent] = {}
        feed.check(self._position)

    @property
    def position(self) -> str:
        return str(self._position)

    @property
    def is_behind(self) -> bool:
        """Whether there are changes after the position, of any kind."""
        return self._feed.version > self._position

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        while True:
            await self._feed.changed(self._position)
            self._feed.check(self._position)
            event = await self._next()
            self._position += 1
            if self._kind is None or event.object.kind == self._kind:
                return event

    async def _next(self) -> WatchEvent:
        wanted = self._position + 1
        found = self._feed.recent(wanted) or self._chunk.pop(wanted, None)
        if found is None:
            self._chunk = dict(await self._feed.read_log(self._position))
            found = self._chunk.pop(wanted, None)
        if found is None:
            raise Expired(f"the change after resourceVersion {self._position} is no longer kept; list again")
        return found
