"""Look-up of the pool that a request names. A pool that is being deleted counts as missing."""

from __future__ import annotations

from typing import TypeVar

from rollyard.api.services import Services
from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.base import KindObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool

K = TypeVar("K", bound=KindObject)


async def inference_pool(services: Services, namespace: str, name: str) -> InferencePool:
    """Return the InferencePool. Raises Invalid if it is missing."""
    return await _named(services, InferencePool, namespace, name)


async def rollout_pool(services: Services, namespace: str, name: str) -> RolloutPool:
    """Return the RolloutPool. Raises Invalid if it is missing."""
    return await _named(services, RolloutPool, namespace, name)


async def _named(services: Services, kind: type[K], namespace: str, name: str) -> K:
    key = kind.key_of(namespace, name)
    try:
        found = await services.store.get(key, kind)
    except NotFound:
        pools, _ = await services.store.list_objects(key.kind, namespace)
        there = ", ".join(p.metadata.name for p in pools) or "none; create one first"
        message = f"there is no {key.kind} {name!r} in namespace {namespace!r}; existing ones: {there}"
        raise Invalid(message, causes=[Cause("pool", message)]) from None
    if found.metadata.deletion_timestamp is not None:
        raise Invalid(f"{key.kind} {name!r} is being deleted", causes=[Cause("pool", "is being deleted")])
    return found
