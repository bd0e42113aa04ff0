"""Look-ups of pools in the store, for all parts of the server and for the API."""

from __future__ import annotations

from typing import TypeVar

from rollyard.core.errors import NotFound
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
