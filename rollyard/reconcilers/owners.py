"""Deletion of pools with their owners: a pool whose `ownerReferences` all name objects that are gone is deleted.

Owners in other APIs are never taken for gone, because this server cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollyard.core.errors import Conflict, NotFound
from rollyard.kinds.base import API_VERSION, KindObject, ObjectKey, OwnerReference
from rollyard.kinds.registry import KINDS, Pool
from rollyard.store.object_store import ObjectStore


async def delete_with_owners(store: ObjectStore, pool: Pool) -> bool:
    """Delete the pool if it has owners and all of them are gone. Return whether that is so."""
    owners = pool.metadata.owner_references
    if not owners or pool.metadata.deletion_timestamp is not None:
        return False
    for owner in owners:
        if await _exists(store, pool, owner):
            return False
    try:
        await store.delete(pool.key, uid=pool.metadata.uid, version=pool.metadata.resource_version)
    except NotFound:
        pass
    except Conflict:
        return False  # the owners may be others by now; the change queues the pool again
    return True


async def _exists(store: ObjectStore, pool: Pool, owner: OwnerReference) -> bool:
    if owner.api_version != API_VERSION or owner.kind not in KINDS:
        return True
    try:
        found = await store.get(ObjectKey(kind=owner.kind, namespace=pool.metadata.namespace, name=owner.name))
    except NotFound:
        return False
    return bool(found.metadata.uid == owner.uid)


def dependents(pools: Iterable[Pool], old: KindObject | None, new: KindObject | None) -> Iterable[ObjectKey]:
    """Return the keys of the pools that a deleted object owned."""
    if new is not None or old is None:
        return ()
    uid = old.metadata.uid
    return [pool.key for pool in pools if any(owner.uid == uid for owner in pool.metadata.owner_references)]
