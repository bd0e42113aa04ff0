"""`Event`: something that happened to an object, recorded once and counted."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, NamedTuple

from rollyard.kinds.base import KindModel, KindObject


class InvolvedObject(KindModel):
    kind: str
    namespace: str
    name: str
    uid: str = ""


class Event(KindObject):
    """Something that happened to an object. A repetition raises `count` and moves `lastTimestamp`."""

    PLURAL: ClassVar[str] = "events"
    SINGULAR: ClassVar[str] = "event"
    SHORT: ClassVar[tuple[str, ...]] = ("ev",)

    kind: Literal["Event"] = "Event"
    involved_object: InvolvedObject
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1
    first_timestamp: datetime
    last_timestamp: datetime


class PoolEvent(NamedTuple):
    """Event to record for a pool."""

    reason: str
    message: str
    warning: bool = False
