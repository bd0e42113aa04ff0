"""Input of `server.rollouts.waiting_reason`: the facts from the store, the connected node agents and the endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.api.services import Services
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.dispatch import served_versions
from rollyard.server.rollouts.waiting_reason import LOOK_AHEAD_RECORDS, ModelSupply, QueueView
from rollyard.store.base import GroupVersions, RolloutRecord


async def queue_view(
    services: Services, namespace: str, name: str, records: Sequence[RolloutRecord]
) -> QueueView | None:
    """Return the facts that `waiting_reason` needs to explain why these records of the pool wait; None if there is no
    such pool."""
    now = services.clock.time()
    pool = await services.pools.find(RolloutPool, namespace, name)
    if pool is None:
        return None
    listed, _ = await services.store.objects.list_objects("Allocation", namespace)
    allocations = [a for a in listed if isinstance(a, Allocation)]
    node_agents = [a for a in services.node_agents.of_pool(PoolKey(namespace, name)) if not a.draining]
    return QueueView(
        name,
        now,
        pool,
        [await _supply(services, namespace, role, of, allocations) for role, of in pool.spec.inference.items()],
        _supply_of(pool, allocations),
        node_agents,
        sum(services.rollouts.leases.has_exclusive(a.holder) for a in node_agents),
        served_versions(services.endpoints, pool),
        await _groups(services, namespace, records),
        await services.store.rollouts.queue_places(
            namespace, name, now, LOOK_AHEAD_RECORDS, pool.spec.sandbox.default_image or ""
        ),
        {one.image: one for one in await services.store.rollouts.missing_images(PoolKey(namespace, name))},
    )


async def _supply(
    services: Services, namespace: str, role: str, name: str, allocations: Sequence[Allocation]
) -> ModelSupply:
    pool = await services.pools.find(InferencePool, namespace, name)
    if pool is None:
        return ModelSupply(name, role, None)
    return ModelSupply(
        name, role, pool, _supply_of(pool, allocations), *services.endpoints.count_with_room(PoolKey(namespace, name))
    )


def _supply_of(pool: KindObject, allocations: Sequence[Allocation]) -> list[Allocation]:
    return [a for a in allocations if a.spec.pool.uid == pool.metadata.uid]


async def _groups(services: Services, namespace: str, records: Sequence[RolloutRecord]) -> dict[str, GroupVersions]:
    bound = {r.group for r in records if r.group is not None and r.weights is not None and r.weights.same}
    if not bound:
        return {}
    return await services.store.rollouts.transact(
        lambda tx: {group: tx.group_versions(namespace, group) for group in bound}
    )
