"""Checks of a request before it is accepted: its pool, its task's kind, the turn that it goes on from, the room in the queue,
and whether it may restrict the weights versions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points

from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.base import get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.installed_task_fields import check_task, offers_tools, placed
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import CHECK, RolloutRequest
from rollyard.kinds.rollout_pool import POLICY_ROLE, RolloutPool
from rollyard.kinds.task import Task
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.forks import Forks
from rollyard.server.rollouts.queue_limit import QueueLimit
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.rollouts.waiting_reason import unknown_kind
from rollyard.store.store import Store
from rollyard.wire.tool_proof import CALLS_UNREADABLE


class RequestChecks:
    """Checks of requests against the pools, node agents and rollouts that there are. Each method raises Invalid, with a cause
    for the field in the HTTP body."""

    def __init__(
        self, store: Store, pools: StoredPools, node_agents: ConnectedNodeAgents, queue_limit: QueueLimit
    ) -> None:
        self._objects, self._pools = store.objects, pools
        self._node_agents, self._queue_limit = node_agents, queue_limit
        self._forks = Forks(store)
        self.task_kinds = frozenset(entry.name for entry in entry_points(group="rollyard.tasks"))
        """Task kinds that have a handler in the server's Python."""

    async def admit(self, namespace: str, requests: Sequence[RolloutRequest]) -> None:
        """Check the requests of a submit, and count them in the queues of their pools. Raises TooManyRequests for a full
        queue."""
        pools = await self.check_pools(namespace, requests)
        self.check_kinds(requests, pools)
        await self.check_tools(requests, pools)
        await self._forks.check(namespace, requests)
        self.check_needs([(r.task, pools[r.pool]) for r in requests])
        self.check_roles([(i, r.task, pools[r.pool]) for i, r in enumerate(requests) if r.mode != CHECK])
        for pool in pools.values():
            if (limit := pool.spec.max_queued_rollouts) is not None:
                new = sum(r.n for r in requests if r.pool == pool.metadata.name)
                await self._queue_limit.admit(PoolKey(namespace, pool.metadata.name), limit, new)

    async def check_pools(self, namespace: str, requests: Sequence[RolloutRequest]) -> dict[str, RolloutPool]:
        """Return the pools of these requests, by name. Raises Invalid if a pool cannot run its requests."""
        pools = {name: await self._pools.named(RolloutPool, namespace, name) for name in {r.pool for r in requests}}
        for name, pool in pools.items():
            if POLICY_ROLE not in pool.spec.inference and any(r.mode != CHECK for r in requests if r.pool == name):
                message = (
                    f"RolloutPool {name!r} has no InferencePool for the role {POLICY_ROLE!r}, which agents sample from; "
                    f"add `inference: {{{POLICY_ROLE}: <InferencePool>}}` to its spec"
                )
                raise Invalid(message, causes=[Cause("pool", message)])
            if any(r.min_weights_version is not None or r.weights is not None for r in requests if r.pool == name):
                await self._check_versions(pool)
        return pools

    async def _check_versions(self, pool: RolloutPool) -> None:
        """Raise Invalid if the engines of the policy role are external: Rollyard does not know their weights versions."""
        inference = pool.spec.inference[POLICY_ROLE]
        fields = "min_weights_version, group_version and max_staleness"
        with contextlib.suppress(NotFound):
            found = await self._objects.get(InferencePool.key_of(pool.metadata.namespace, inference), InferencePool)
            if found.spec.engine.external is not None:
                raise Invalid(
                    f"the engines of InferencePool {inference!r} are external, so their weights are not known: "
                    f"leave out {fields}"
                )

    async def engines_take_priority(self, pool: RolloutPool) -> bool:
        """Return whether the engines of the pool's policy role order waiting requests by priority."""
        with contextlib.suppress(NotFound):
            key = InferencePool.key_of(pool.metadata.namespace, pool.spec.inference[POLICY_ROLE])
            vllm = (await self._objects.get(key, InferencePool)).spec.engine.vllm
            return vllm is not None and vllm.takes_priority
        return False

    async def check_tools(
        self,
        requests: Sequence[RolloutRequest],
        pools: Mapping[str, RolloutPool],
        place: str = "rollouts[{}].task",
    ) -> None:
        """Raise Invalid for a task with tools whose model's calls would not be read.

        A rollout with a parser of its own is accepted; the node agent tries it out. `place`: as for `check_kinds`.
        """
        sampled = {request.pool for request in requests if request.mode != CHECK}
        unread = {name: await self._why_calls_unread(pools[name]) for name in sampled}
        for i, request in enumerate(requests):
            why, agent = unread.get(request.pool) if request.mode != CHECK else None, request.agent
            if (
                why is None
                or agent.command is not None
                or agent.tool_parser is not None
                or not offers_tools(request.task)
            ):
                continue
            inference = pools[request.pool].spec.inference[POLICY_ROLE]
            message = f"tool calls of InferencePool {inference!r} would not be read: {why}"
            raise Invalid(message, causes=[Cause(place.format(i), message, CALLS_UNREADABLE)])

    async def _why_calls_unread(self, pool: RolloutPool) -> str | None:
        """Return why the calls of the pool's policy are not read; None if they are, or if this is not known."""
        with contextlib.suppress(NotFound):
            key = InferencePool.key_of(pool.metadata.namespace, pool.spec.inference[POLICY_ROLE])
            found = await self._objects.get(key, InferencePool)
            condition = get_condition(found.status.conditions, "ToolCalls")
            if condition is not None and condition.status == "False":
                settled = (
                    condition.observed_generation == found.metadata.generation
                )  # else a parser may have been named since
                return condition.message if settled else None
        return None

    def check_kinds(
        self,
        requests: Sequence[RolloutRequest],
        pools: Mapping[str, RolloutPool],
        place: str = "rollouts[{}].task",
    ) -> None:
        """Raise Invalid for a kind of task that neither the server nor any node agent knows.

        The kind must also have a handler in a node agent of the request's pool. This is checked only while all desired
        node agents of the pool are connected (`_all_node_agents`).

        `place`: path of a task in the HTTP body. `{}` in the path stands for the index in `requests`.
        """
        known = self.task_kinds | self._node_agents.kinds()
        for i, request in enumerate(requests):
            kind, message = request.task.kind, None
            if kind not in known:
                message = (
                    f"unknown task kind {kind!r}; known ones: {', '.join(sorted(known))}. Install a handler of another kind "
                    "in the Python of the server and of the node agents, then restart them"
                )
            elif node_agents := self._all_node_agents(pools[request.pool]):
                message = unknown_kind(kind, request.pool, node_agents)
            if message is not None:
                raise Invalid(message, causes=[Cause(f"{place.format(i)}.kind", message)])

    def check_needs(self, tasks: Sequence[tuple[Task, RolloutPool]], place: str = "rollouts[{}]") -> None:
        """Raise Invalid for a checked task that needs more than its pool has. `place`: as for `check_tasks`."""
        for i, (task, pool) in enumerate(tasks):
            with placed(place.format(i)):
                check_task(task).check_pool(pool.spec.sandbox, pool.spec.stages.eval.timeout_seconds)

    def check_roles(self, tasks: Iterable[tuple[int, Task, RolloutPool]], place: str = "rollouts[{}]") -> None:
        """Raise Invalid for a checked task whose score needs a model that its pool does not name. Each task comes with its
        number in the body. A check is scored without one."""
        for i, task, pool in tasks:
            with placed(place.format(i)):
                check_task(task).check_roles(pool.spec.inference)

    def _all_node_agents(self, pool: RolloutPool) -> list[ConnectedNodeAgent]:
        """Return the pool's node agents if exactly the desired number is connected and none drains, else an empty list.

        The list is empty too for a suspended pool, and for a pool whose newest spec has not been processed yet.
        """
        status, node_agents = (
            pool.status,
            self._node_agents.of_pool(PoolKey(pool.metadata.namespace, pool.metadata.name)),
        )
        settled = status.observed_generation == pool.metadata.generation and not pool.spec.suspend
        sizes = {status.replicas.desired, status.replicas.requested, status.replicas.ready, len(node_agents)}
        return node_agents if settled and len(sizes) == 1 and not any(a.draining for a in node_agents) else []
