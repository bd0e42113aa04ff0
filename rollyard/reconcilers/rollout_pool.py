"""Observer of RolloutPools: reads their queues, leases and node agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ConditionUpdate, ObjectKey, Reason, get_condition
from rollyard.kinds.failure_table import POOL_DELETED
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import POLICY_ROLE, RolloutPool
from rollyard.kinds.top import MissingImageView
from rollyard.reconcilers.autoscaler import Metric
from rollyard.reconcilers.demand import Counts, rollout_metrics
from rollyard.reconcilers.plan import Member
from rollyard.reconcilers.pool_observation import PoolObservation
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.missing_image import NOW
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.stage_load import stage_load
from rollyard.wire.node import IMAGE_REASON


class RolloutPoolObserver:
    def __init__(
        self,
        node_agents: ConnectedNodeAgents,
        rollouts: RolloutService,
        inference_pool: Callable[[ObjectKey], InferencePool | None],
    ) -> None:
        self._node_agents = node_agents
        self._rollouts = rollouts
        self._inference_pool = inference_pool

    async def observe(self, pool: Pool, allocations: Sequence[Allocation]) -> PoolObservation:
        assert isinstance(pool, RolloutPool)
        queued = await self._rollouts.queued(pool.pool_key)
        in_flight = self._rollouts.leases.in_flight(*pool.pool_key)
        # Leases are counted, because they outlive a restart of the server. So an allocation counts as busy even before
        # its node agent reconnects.
        loads = self._rollouts.leases.by_allocation()
        node_agents = {a.metadata.uid: self._node_agents.of_allocation(a.metadata.uid) for a in allocations}
        connected = [agent for agent in node_agents.values() if agent is not None]
        return PoolObservation(
            members=[_member(a, node_agents[a.metadata.uid] is not None, loads[a.metadata.uid]) for a in allocations],
            metrics=await self._metrics(pool, in_flight) if pool.spec.autoscaling is not None else [],
            status_update={"stages": stage_load(queued, in_flight, connected)},
            problem=self._pool_problem(pool),
            conditions=[
                *_images_ready(pool, await self._failing_images(pool)),
                *_enough_memory(pool, connected),
                *_images_writable(pool, connected),
            ],
        )

    async def _failing_images(self, pool: RolloutPool) -> Sequence[MissingImageView]:
        return await self._rollouts.failing_images(pool.pool_key, pool.spec.sandbox.default_image or "")

    async def _metrics(self, pool: RolloutPool, in_flight: Counts) -> list[Metric]:
        demand = await self._rollouts.demand(pool.pool_key, pool.spec.sandbox.default_image)
        return rollout_metrics(pool.spec, demand, in_flight)

    def _pool_problem(self, pool: RolloutPool) -> Reason | None:
        if POLICY_ROLE not in pool.spec.inference:
            words = f"spec.inference has no InferencePool for the role {POLICY_ROLE}, which agents sample from"
            return Reason("NoInference", f"{words}; add `inference: {{{POLICY_ROLE}: NAME}}`")
        for role, name in pool.spec.inference.items():
            key = ObjectKey(kind="InferencePool", namespace=pool.metadata.namespace, name=name)
            if self._inference_pool(key) is None:
                why = f"role {role} names InferencePool {name!r}, which does not exist; create it"
                return Reason("InferencePoolNotFound", why)
        return None

    async def on_deleted(self, pool: Pool) -> None:
        await self._rollouts.cancel_queued(pool.pool_key, POOL_DELETED, f"its pool {pool.metadata.name} was deleted")


def _member(allocation: Allocation, connected: bool, load: int) -> Member:
    silent = not connected and allocation.status.ready_at is not None
    return Member(allocation, connected, load, silent)


def _images_ready(pool: RolloutPool, failing: Sequence[MissingImageView]) -> list[ConditionUpdate]:
    """Return the condition. It appears when an image fails for the first time."""
    if failing:
        first, more = failing[0], len(failing) - 1
        again = "" if first.waiting or first.next_try == NOW else f"; it is tried again {first.next_try}"
        named = f"cannot be had: `rollyard describe rp/{pool.metadata.name}` names all"
        others = f"; {more} more {'image' if more == 1 else 'images'} {named}" if more else ""
        return [ConditionUpdate("ImagesReady", False, IMAGE_REASON, f"{first.message}{again}{others}")]
    if get_condition(pool.status.conditions, "ImagesReady") is None:
        return []
    return [ConditionUpdate("ImagesReady", True, "ImagesReady")]


def _enough_memory(pool: RolloutPool, node_agents: Sequence[ConnectedNodeAgent]) -> list[ConditionUpdate]:
    """Return the condition. It appears when a job has too little memory for the first time."""
    short = [(agent, agent.memory_shortage) for agent in node_agents if agent.memory_shortage]
    advice = "set more memory in `allocation`, or less in `sandbox.memory`"
    return _shortage(pool, node_agents, "EnoughMemory", "FewerSandboxes", short, "too little memory", advice)


def _images_writable(pool: RolloutPool, node_agents: Sequence[ConnectedNodeAgent]) -> list[ConditionUpdate]:
    """Return the condition. It appears when the sandboxes of a node cannot change all of an image for the first time."""
    short = [(agent, agent.image_shortage) for agent in node_agents if agent.image_shortage]
    advice = "or use other nodes: `allocation.exclude` names nodes that get no job"
    return _shortage(pool, node_agents, "ImagesWritable", "FoldersStay", short, "such a node", advice)


def _shortage(
    pool: RolloutPool,
    node_agents: Sequence[ConnectedNodeAgent],
    type: str,
    reason: str,
    short: Sequence[tuple[ConnectedNodeAgent, str]],
    what: str,
    advice: str,
) -> list[ConditionUpdate]:
    if short:
        jobs = "allocation has" if len(short) == 2 else "allocations have"
        others = f"; {len(short) - 1} more {jobs} {what}" if len(short) > 1 else ""
        agent, words = short[0]
        return [ConditionUpdate(type, False, reason, f"node {agent.identity.node} {words}{others} ({advice})")]
    if not node_agents or get_condition(pool.status.conditions, type) is None:
        return []
    return [ConditionUpdate(type, True, type)]
