"""What is a RolloutPool's own: stages, queues, node agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.pools import InferencePool, Pool, RolloutPool, StageStatus
from rollyard.kinds.rollout import Stage
from rollyard.reconcilers.plan import Member
from rollyard.rollouts.agents import Agents
from rollyard.rollouts.service import Rollouts


class RolloutTrade:
    def __init__(
        self, agents: Agents, rollouts: Rollouts, inference_pool: Callable[[ObjectKey], InferencePool | None]
    ) -> None:
        self._agents = agents
        self._rollouts = rollouts
        self._inference_pool = inference_pool

    def member(self, allocation: Allocation) -> Member:
        agent = self._agents.of_allocation(allocation.metadata.uid)
        # By leases, not by connection: after a restart of ours it is busy before its node agent has dialled in again.
        load = len(self._rollouts.leases.of_allocation(allocation.metadata.uid))
        return Member(allocation, ready=agent is not None, load=load)

    async def demand(self, pool: Pool) -> int | None:
        """Queued and in flight."""
        queued = await self._rollouts.queued(pool.metadata.namespace, pool.metadata.name)
        return sum(queued.values()) + sum(self._in_flight(pool).values())

    def capacity(self, pool: Pool) -> int:
        assert isinstance(pool, RolloutPool)
        return pool.spec.stages.run.workers.min

    async def details(self, pool: Pool, members: Sequence[Member]) -> dict[str, Any]:
        queued = await self._rollouts.queued(pool.metadata.namespace, pool.metadata.name)
        in_flight = self._in_flight(pool)
        agents = [a for m in members if (a := self._agents.of_allocation(m.allocation.metadata.uid)) is not None]
        stages = {
            stage.value: StageStatus(
                queued=queued.get(stage, 0),
                in_flight=in_flight[stage],
                width=sum(a.widths.get(stage, 0) for a in agents),
            )
            for stage in Stage
        }
        return {"stages": stages}

    def problem(self, pool: Pool, members: Sequence[Member]) -> tuple[str, str] | None:
        assert isinstance(pool, RolloutPool)
        for role, name in pool.spec.inference.items():
            key = ObjectKey(kind="InferencePool", namespace=pool.metadata.namespace, name=name)
            if self._inference_pool(key) is None:
                return (
                    "InferencePoolNotFound",
                    f"role {role} names InferencePool {name!r}, which does not exist; apply it",
                )
        return None

    async def deleted(self, pool: Pool) -> None:
        meta = pool.metadata
        await self._rollouts.cancel_queued(
            (meta.namespace, meta.name), "PoolDeleted", f"its pool {meta.name} was deleted"
        )

    def _in_flight(self, pool: Pool) -> dict[Stage, int]:
        return self._rollouts.leases.in_flight(pool.metadata.namespace, pool.metadata.name)
