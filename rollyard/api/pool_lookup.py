"""Look-up of the pool that a request names; one that is being deleted does not count."""

from __future__ import annotations

from rollyard.api.services import Services
from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool


async def inference_pool(services: Services, namespace: str, name: str) -> InferencePool:
    """The InferencePool. Raises Invalid."""
    found = await _named(services, "InferencePool", namespace, name)
    assert isinstance(found, InferencePool)
    return found


async def rollout_pool(services: Services, namespace: str, name: str) -> RolloutPool:
    """The RolloutPool. Raises Invalid."""
    found = await _named(services, "RolloutPool", namespace, name)
    assert isinstance(found, RolloutPool)
    return found


async def _named(services: Services, kind: str, namespace: str, name: str) -> object:
    try:
        found = await services.store.get(ObjectKey(kind=kind, namespace=namespace, name=name))
    except NotFound:
        pools, _ = await services.store.list_objects(kind, namespace)
        there = ", ".join(p.metadata.name for p in pools) or "none; create one first"
        message = f"there is no {kind} {name!r} in namespace {namespace!r}; existing ones: {there}"
        raise Invalid(message, causes=[Cause("pool", message)]) from None
    if found.metadata.deletion_timestamp is not None:
        raise Invalid(f"{kind} {name!r} is being deleted", causes=[Cause("pool", "is being deleted")])
    return found
