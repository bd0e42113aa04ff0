"""Look-up of the pool that a request names."""

from __future__ import annotations

from typing import TypeVar, cast

from rollyard.api.services import Services
from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool

K = TypeVar("K", bound=KindObject)


async def inference_pool(services: Services, namespace: str, name: str) -> InferencePool:
    """Return the InferencePool. Raises Invalid if it is missing or is being deleted."""
    return await _named(services, InferencePool, namespace, name)


async def rollout_pool(services: Services, namespace: str, name: str) -> RolloutPool:
    """Return the RolloutPool. Raises Invalid if it is missing or is being deleted."""
    return await _named(services, RolloutPool, namespace, name)


async def inference_pool_in_path(services: Services, namespace: str, name: str) -> InferencePool:
    """Return the InferencePool, also while it is being deleted. Raises NotFound, which names the existing ones."""
    key = InferencePool.key_of(namespace, name)
    try:
        return cast(InferencePool, await services.store.get(key, InferencePool))
    except NotFound:
        raise NotFound(await _why_missing(services, key)) from None


async def _named(services: Services, kind: type[K], namespace: str, name: str) -> K:
    key = kind.key_of(namespace, name)
    try:
        found = await services.store.get(key, kind)
    except NotFound:
        message = await _why_missing(services, key)
        raise Invalid(message, causes=[Cause("pool", message)]) from None
    if found.metadata.deletion_timestamp is not None:
        raise Invalid(f"{key.kind} {name!r} is being deleted", causes=[Cause("pool", "is being deleted")])
    return found


async def _why_missing(services: Services, key: ObjectKey) -> str:
    pools, _ = await services.store.list_objects(key.kind, key.namespace)
    there = ", ".join(p.metadata.name for p in pools) or "none; create one first"
    return f"there is no {key.kind} {key.name!r} in namespace {key.namespace!r}; existing ones: {there}"
