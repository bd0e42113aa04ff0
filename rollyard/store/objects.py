"""Objects and the log of their changes: versions, generations, finalizers, preconditions. The writer runs the changes.

The resourceVersion of an object is the sequence number of the object's last change in the log. One log has the changes
of all objects, numbered without gaps. The stored object contains its resourceVersion.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from rollyard.core.errors import AlreadyExists, Cause, Conflict, Invalid, MethodNotAllowed, NotFound, Unavailable
from rollyard.kinds.base import GROUP, KindObject, ObjectKey, ObjectMeta, evolve
from rollyard.kinds.registry import KINDS
from rollyard.store.watch import KEPT_CHANGES, WatchEvent
from rollyard.store.writer import WriteUnit

_PRUNE_EVERY = 1000
_NOT_CONTENT = {"api_version", "kind", "metadata", "status"}
Change = Literal["ADDED", "MODIFIED", "DELETED"]


def create(unit: WriteUnit, obj: KindObject, now: datetime) -> KindObject:
    if (there := _find(unit.db, obj.key)) is not None:
        going = "object is being deleted: " if there.metadata.deletion_timestamp else ""
        raise AlreadyExists(f"{going}{describe(obj.key)} already exists")
    given = {"uid": str(uuid.uuid4()), "generation": 1, "creation_timestamp": now, "deletion_timestamp": None}
    return _record(unit, "ADDED", _with_metadata(obj, **given))


def update(unit: WriteUnit, obj: KindObject, part: Literal["spec", "status"]) -> KindObject:
    current = _get(unit.db, obj.key)
    check_preconditions(current, obj.metadata.uid, obj.metadata.resource_version)
    new = _with_status(current, obj) if part == "status" else _with_spec(current, obj)
    if new == current:
        return current
    gone = new.metadata.deletion_timestamp is not None and not new.metadata.finalizers
    return _record(unit, "DELETED" if gone else "MODIFIED", new)


def delete(unit: WriteUnit, key: ObjectKey, uid: str, version: str, now: datetime) -> KindObject:
    current = _get(unit.db, key)
    check_preconditions(current, uid, version)
    if not current.metadata.finalizers:
        return _record(unit, "DELETED", current)
    if current.metadata.deletion_timestamp is not None:
        return current
    return _record(unit, "MODIFIED", _with_metadata(current, deletion_timestamp=now))


def delete_unchanged(unit: WriteUnit, objects: Sequence[KindObject]) -> int:
    """Delete those of the objects that are stored exactly as given; return how many."""
    found = [o for o in objects if _find(unit.db, o.key) == o]
    for obj in found:
        _record(unit, "DELETED", obj)
    return len(found)


def load(db: sqlite3.Connection) -> list[KindObject]:
    """Return all stored objects. Raises Unavailable if this version cannot read an object. The message names the
    object."""
    found = []
    for kind, name, body in db.execute("SELECT kind, namespace || '/' || name, body FROM objects"):
        try:
            found.append(_parse(kind, body))
        except (KeyError, ValidationError) as error:
            raise Unavailable(f"the stored {kind} {name} cannot be read by this version of Rollyard: {error}") from None
    return found


def latest_version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("SELECT max(version) FROM changes").fetchone()
    return version or 0


def oldest_start(db: sqlite3.Connection) -> int:
    """Return the lowest version from which a watch may begin."""
    (version,) = db.execute("SELECT min(version) FROM changes").fetchone()
    return version - 1 if version else 0


def read_changes(db: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, WatchEvent]]:
    rows = db.execute(
        "SELECT version, type, kind, body FROM changes WHERE version > ? ORDER BY version LIMIT ?", (after, limit)
    )
    return [(version, WatchEvent(type, _parse(kind, body))) for version, type, kind, body in rows]


def describe(key: ObjectKey) -> str:
    """Return the object's name as kubectl prints it, such as `rolloutpools.rollyard.dev "swe"`."""
    return f'{KINDS[key.kind].PLURAL}.{GROUP} "{key.name}"'


def _find(db: sqlite3.Connection, key: ObjectKey) -> KindObject | None:
    where = (key.kind, key.namespace, key.name)
    row = db.execute("SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?", where).fetchone()
    return _parse(key.kind, row[0]) if row else None


def _get(db: sqlite3.Connection, key: ObjectKey) -> KindObject:
    if (found := _find(db, key)) is None:
        raise NotFound(f"{describe(key)} not found")
    return found


def check_preconditions(current: KindObject, uid: str, version: str) -> None:
    """Raise Conflict if the object has another uid or resourceVersion. An empty one is not checked."""
    if uid and uid != current.metadata.uid:
        raise Conflict(
            f"{describe(current.key)} has uid {current.metadata.uid}, not {uid}: another object with this name has replaced it"
        )
    if version and version != current.metadata.resource_version:
        raise Conflict(
            f"Operation cannot be fulfilled on {describe(current.key)}: the object has been modified; "
            "please apply your changes to the latest version and try again"
        )


def _with_metadata(obj: KindObject, **changes: Any) -> KindObject:
    return evolve(obj, metadata=evolve(obj.metadata, **changes))


def _with_status(current: KindObject, obj: KindObject) -> KindObject:
    if "status" not in type(current).model_fields:
        raise MethodNotAllowed(f"{type(current).PLURAL} have no status; update the object itself")
    return _normalized(evolve(current, status=obj.status))  # type: ignore[attr-defined]


def _with_spec(current: KindObject, obj: KindObject) -> KindObject:
    """Return the stored object with the new metadata and content. Changed content raises the generation."""
    _check_finalizers(current, obj.metadata)
    content = {name: getattr(obj, name) for name in type(obj).model_fields if name not in _NOT_CONTENT}
    metadata = evolve(
        current.metadata,
        finalizers=obj.metadata.finalizers,
        labels=obj.metadata.labels,
        annotations=obj.metadata.annotations,
        owner_references=obj.metadata.owner_references,
    )
    new = _normalized(evolve(current, **content, metadata=metadata))
    if all(getattr(new, name) == getattr(current, name) for name in content):
        return new
    return _with_metadata(new, generation=current.metadata.generation + 1)


def _check_finalizers(current: KindObject, metadata: ObjectMeta) -> None:
    added = [f for f in metadata.finalizers if f not in current.metadata.finalizers]
    if current.metadata.deletion_timestamp is not None and added:
        message = f"no new finalizer can be added while the object is being deleted; leave out {', '.join(added)}"
        raise Invalid(f"{describe(current.key)}: {message}", causes=[Cause("metadata.finalizers", message)])


def _normalized(obj: KindObject) -> KindObject:
    """Return the object as it will be read from the store. In this form it compares as equal to a stored object with
    the same content. It is a copy, so the caller's later changes of `obj` have no effect on it."""
    return _parse(obj.kind, _dump(obj))


def _parse(kind: str, body: str) -> KindObject:
    return KINDS[kind].model_validate_json(body)


def _dump(obj: KindObject) -> str:
    return obj.model_dump_json(by_alias=True, exclude_none=True)


def _record(unit: WriteUnit, change: Change, obj: KindObject) -> KindObject:
    """Write or delete the object, and add the change to the log. Return the object with its new resourceVersion."""
    version = latest_version(unit.db) + 1
    body = _dump(_with_metadata(obj, resource_version=str(version)))
    key = obj.key
    if change == "DELETED":
        where = (key.kind, key.namespace, key.name)
        unit.db.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", where)
    else:
        unit.db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (key.kind, key.namespace, key.name, body))
    unit.db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (version, change, obj.kind, body))
    if version % _PRUNE_EVERY == 0:
        unit.db.execute("DELETE FROM changes WHERE version <= ?", (version - KEPT_CHANGES,))
    stored = _parse(obj.kind, body)
    unit.events.append(WatchEvent(change, stored))
    return stored
