"""Look-ups of pools in the store, for all parts of the server and for the API."""

from __future__ import annotations

from typing import TypeVar

from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import DEFAULT_MAX_ATTEMPTS, RolloutPool, Stages
from rollyard.store.object_store import ObjectStore

P = TypeVar("P", RolloutPool, InferencePool)


class StoredPools:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def find(self, kind: type[P], namespace: str, name: str) -> P | None:
        """Return the pool, also while it is being deleted; None if there is none."""
        try:
            return await self._store.get(kind.key_of(namespace, name), kind)
        except NotFound:
            return None

    async def named(self, kind: type[P], namespace: str, name: str) -> P:
        """Return the pool that a request names. Raises Invalid if it is missing or is being deleted."""
        found = await self.find(kind, namespace, name)
        if found is None:
            message = await self._why_missing(kind, namespace, name)
            raise Invalid(message, causes=[Cause("pool", message)])
        if found.metadata.deletion_timestamp is not None:
            raise Invalid(f"{kind.__name__} {name!r} is being deleted", causes=[Cause("pool", "is being deleted")])
        return found

    async def inference_pool_in_path(self, namespace: str, name: str) -> InferencePool:
        """Return the InferencePool, also while it is being deleted. Raises NotFound, which names the existing ones."""
        found = await self.find(InferencePool, namespace, name)
        if found is None:
            raise NotFound(await self._why_missing(InferencePool, namespace, name))
        return found

    async def _why_missing(self, kind: type[RolloutPool] | type[InferencePool], namespace: str, name: str) -> str:
        pools, _ = await self._store.list_objects(kind.__name__, namespace)
        there = ", ".join(p.metadata.name for p in pools) or "none; create one first"
        return f"there is no {kind.__name__} {name!r} in namespace {namespace!r}; existing ones: {there}"

    async def rollout_pool(self, key: PoolKey) -> RolloutPool:
        """Return the pool. Raises NotFound."""
        return await self._store.get(RolloutPool.key_of(*key), RolloutPool)

    async def rollout_pools(self) -> list[RolloutPool]:
        found, _ = await self._store.list_objects("RolloutPool")
        return [p for p in found if isinstance(p, RolloutPool)]

    async def inference_pools(self) -> list[InferencePool]:
        found, _ = await self._store.list_objects("InferencePool")
        return [p for p in found if isinstance(p, InferencePool)]

    async def stages(self, key: PoolKey) -> Stages:
        """Return the stages of the pool. Raises NotFound."""
        return (await self.rollout_pool(key)).spec.stages

    async def max_attempts(self, key: PoolKey) -> int:
        """Return the pool's limit of attempts; the default if the pool is gone."""
        pool = await self.find(RolloutPool, *key)
        return pool.spec.max_attempts if pool is not None else DEFAULT_MAX_ATTEMPTS
