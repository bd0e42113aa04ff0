"""Events about objects. A repeated event is stored once, with a count."""

from __future__ import annotations

import hashlib
import logging
from typing import Literal

from rollyard.core.clock import Clock, as_datetime
from rollyard.core.errors import ApiError, NotFound
from rollyard.kinds.base import KindObject, ObjectMeta, evolve
from rollyard.kinds.event import Event, InvolvedObject
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

MAX_MESSAGE = 1024


class EventRecorder:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record_event(
        self, obj: KindObject, reason: str, message: str, type: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Record an event. A failed write is only logged, because events are only for people."""
        meta, message = obj.metadata, message[:MAX_MESSAGE]
        digest = hashlib.sha256(f"{meta.uid}/{type}/{reason}/{message}".encode()).hexdigest()[:10]
        name = f"{meta.name[:48]}.{digest}".replace(".", "-")
        now = as_datetime(self._clock.time())
        try:
            try:
                there = await self._store.get(Event.key_of(meta.namespace, name), Event)
            except NotFound:
                about = InvolvedObject(kind=obj.key.kind, namespace=meta.namespace, name=meta.name, uid=meta.uid)
                event = Event(
                    metadata=ObjectMeta(name=name, namespace=meta.namespace),
                    involved_object=about,
                    type=type,
                    reason=reason,
                    message=message,
                    first_timestamp=now,
                    last_timestamp=now,
                )
                await self._store.create(event)
            else:
                again = evolve(there, count=there.count + 1, last_timestamp=now)
                await self._store.update(again, "spec")
        except ApiError as error:
            log.warning("event %s of %s was not written: %s", reason, obj.key, error)
