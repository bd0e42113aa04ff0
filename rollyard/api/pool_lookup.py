"""Look-up of the pool that a request names."""

from __future__ import annotations

from typing import TypeVar

from rollyard.api.services import Services
from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool

P = TypeVar("P", RolloutPool, InferencePool)


async def named_pool(services: Services, kind: type[P], namespace: str, name: str) -> P:
    """Return the pool. Raises Invalid if it is missing or is being deleted."""
    found = await services.pools.find(kind, namespace, name)
    if found is None:
        message = await _why_missing(services, kind, namespace, name)
        raise Invalid(message, causes=[Cause("pool", message)])
    if found.metadata.deletion_timestamp is not None:
        raise Invalid(f"{kind.__name__} {name!r} is being deleted", causes=[Cause("pool", "is being deleted")])
    return found


async def inference_pool_in_path(services: Services, namespace: str, name: str) -> InferencePool:
    """Return the InferencePool, also while it is being deleted. Raises NotFound, which names the existing ones."""
    found = await services.pools.find(InferencePool, namespace, name)
    if found is None:
        raise NotFound(await _why_missing(services, InferencePool, namespace, name))
    return found


async def _why_missing(
    services: Services, kind: type[RolloutPool] | type[InferencePool], namespace: str, name: str
) -> str:
    pools, _ = await services.store.objects.list_objects(kind.__name__, namespace)
    there = ", ".join(p.metadata.name for p in pools) or "none; create one first"
    return f"there is no {kind.__name__} {name!r} in namespace {namespace!r}; existing ones: {there}"
