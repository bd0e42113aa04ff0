"""What is an InferencePool's own: endpoints and the sessions on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pools import EndpointStatus, InferencePool, Pool, RolloutPool
from rollyard.reconcilers.plan import Member
from rollyard.rollouts.service import Rollouts


class InferenceTrade:
    def __init__(
        self, endpoints: Endpoints, rollouts: Rollouts, rollout_pools: Callable[[], list[RolloutPool]]
    ) -> None:
        self._endpoints = endpoints
        self._rollouts = rollouts
        self._rollout_pools = rollout_pools

    def member(self, allocation: Allocation) -> Member:
        state = self._endpoints.of_allocation(allocation.metadata.uid)
        return Member(allocation, ready=state is not None and state.ready, load=state.running if state else 0)

    async def demand(self, pool: Pool) -> int | None:
        """Live sessions, and what waits in the queues of the RolloutPools that use this pool."""
        meta, total = pool.metadata, 0
        for user in self._rollout_pools():
            if user.metadata.namespace == meta.namespace and meta.name in user.spec.inference.values():
                queued = await self._rollouts.queued(meta.namespace, user.metadata.name)
                in_flight = self._rollouts.leases.in_flight(meta.namespace, user.metadata.name)
                total += sum(queued.values()) + sum(in_flight.values())
        return total

    def capacity(self, pool: Pool) -> int:
        assert isinstance(pool, InferencePool)
        return pool.spec.autoscaling.target_sessions_per_replica if pool.spec.autoscaling else 1

    async def details(self, pool: Pool, members: Sequence[Member]) -> dict[str, Any]:
        sessions = await self._rollouts.sessions()
        states = self._endpoints.of_pool((pool.metadata.namespace, pool.metadata.name))
        return {
            "endpoints": [
                EndpointStatus(
                    id=s.endpoint.id,
                    url=s.endpoint.url,
                    sessions=sessions.get(s.endpoint.id, 0),
                    weights_version=s.endpoint.weights_version,
                    ready=s.ready,
                    reason=s.reason,
                )
                for s in states
            ]
        }

    def problem(self, pool: Pool, members: Sequence[Member]) -> tuple[str, str] | None:
        """What the engines say of themselves."""
        assert isinstance(pool, InferencePool)
        states = self._endpoints.of_pool((pool.metadata.namespace, pool.metadata.name))
        if pool.spec.engine.external is not None and not any(s.ready for s in states):
            return "NoEndpointReady", "; ".join(f"{s.endpoint.url}: {s.reason}" for s in states) or "not probed yet"
        complaints = [s for s in states if not s.ready and ":" in s.reason]
        if complaints:
            word, _, rest = complaints[0].reason.partition(":")
            return word, f"{complaints[0].endpoint.id}: {rest.strip()}"
        loading = [s for s in states if not s.ready]
        if loading:
            return "Loading", f"{len(loading)} of {len(states)} engines: {loading[0].reason}"
        return None

    async def deleted(self, pool: Pool) -> None:
        """Rollouts in hand go on while their endpoint drains; the queue waits for another pool of this name."""
