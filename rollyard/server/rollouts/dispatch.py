"""Grants queued rollouts to node agents, one pool at a time. Among the node agents that can take a rollout, the one
with the greatest free capacity gets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.errors import RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.rollout_pool import POLICY_ROLE, RolloutPool, RolloutPoolSpec
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.grant_round import MAX_PER_GRANT, GrantedLease, NodeAgentRoom, Round
from rollyard.server.rollouts.history import last_loss
from rollyard.server.rollouts.leases import Leases
from rollyard.server.routing.endpoint_choice import EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.staleness import ServedVersions
from rollyard.store.rollout_store import RolloutStore
from rollyard.wire.node import Grant, Lease

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0


def exclusive_limit(node_agents: int) -> int:
    """Return how many of a pool's node agents may be reserved for rollouts that must run alone. At least half of the
    node agents stay for other rollouts, unless the pool has only one."""
    return max(1, node_agents // 2)


def served_versions(endpoints: EndpointRegistry, pool: RolloutPool) -> ServedVersions:
    """Return the weights versions of the endpoints that this RolloutPool uses for the policy role."""
    name = pool.spec.inference.get(POLICY_ROLE)
    return ServedVersions() if name is None else endpoints.served_versions(PoolKey(pool.metadata.namespace, name))


class Dispatcher:
    """Grants leases: one round for a pool whenever work, capacity, or an endpoint appears."""

    def __init__(
        self,
        store: RolloutStore,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        leases: Leases,
        endpoints: EndpointRegistry,
        choice: EndpointChoice,
        pool: Callable[[PoolKey], Awaitable[RolloutPool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._node_agents = node_agents
        self._leases = leases
        self._endpoints = endpoints
        self._choice = choice
        self._pool = pool
        self._due: set[PoolKey] = set()
        self._waker = Waker()

    def wake(self, pool: PoolKey, at: float = 0.0) -> None:
        """Start a round for this pool now, or at `at` (Unix seconds) if that is later."""
        delay = at - self._clock.time()
        if delay > 0:
            asyncio.get_running_loop().call_later(delay + 0.001, self.wake, pool)
            return
        self._due.add(pool)
        self._waker.wake()

    async def run(self) -> None:
        """Dispatch for ever."""
        loop = asyncio.get_running_loop()
        whole_round = loop.time()
        while True:
            await self._waker.pause(whole_round - loop.time())
            due, self._due = self._due, set()
            if loop.time() >= whole_round:  # a safety net: a missed wake delays a pool by RETRY_SECONDS at most
                due |= {a.pool for a in self._node_agents.all()}
                whole_round = loop.time() + RETRY_SECONDS
            for pool in due:
                try:
                    await self._dispatch(pool)
                except RollyardError as error:
                    log.warning("no rollouts handed out in pool %s/%s: %s", *pool, error)

    async def _dispatch(self, key: PoolKey) -> None:
        taking = [a for a in self._node_agents.of_pool(key) if not a.draining]
        node_agents = [a for a in taking if a.free_init > 0 or a.free_eval > 0]
        if not node_agents:
            return
        pool = await self._pool(key)
        if pool.metadata.deletion_timestamp is not None or pool.spec.suspend:
            return
        rooms = [
            NodeAgentRoom(a, {Stage.INIT: a.free_init, Stage.EVAL: a.free_eval}, self._leases.held_by(a.holder))
            for a in node_agents
            if not self._leases.has_exclusive(a.holder)
        ]
        alone = exclusive_limit(len(taking)) - sum(self._leases.has_exclusive(a.holder) for a in taking)
        served = served_versions(self._endpoints, pool)
        bursts = {name: self._choice.burst(key._replace(name=name)) for name in pool.spec.inference.values()}
        granted = await self._store.transact(
            lambda tx: Round(tx, self._clock.time(), pool, rooms, alone, bursts, served).grant()
        )
        for node_agent in node_agents:
            own = [g for g in granted if g.node_agent is node_agent]
            node_agent.free_eval -= sum(g.record.stage is Stage.EVAL for g in own)
            node_agent.free_init -= sum(g.record.stage is Stage.INIT for g in own)
            for g in own:
                self._leases.add(g.record)
            if own:
                node_agent.grants += 1
                node_agent.send(Grant(leases=[_lease(g, pool.spec) for g in own]))
        if len(granted) >= MAX_PER_GRANT:
            self.wake(key)


def _lease(granted: GrantedLease, pool: RolloutPoolSpec) -> Lease:
    record = granted.record
    lost, lost_node = last_loss(record)
    request = RolloutRequest.model_validate_json(record.request)
    return Lease(
        namespace=record.namespace,
        id=record.id,
        fence=record.fence,
        stage=record.stage,
        attempt=record.attempt,
        sample_index=record.sample_index,
        task=request.task,
        agent=request.agent,
        sampling=request.sampling,
        budgets=request.budgets,
        endpoints=dict(granted.endpoints),
        roles=pool.role_limits,
        resume=pool.resume == request.agent.resume == "auto",
        saved_turns=record.saved_turns,
        lost=lost,
        lost_node=lost_node,
    )
