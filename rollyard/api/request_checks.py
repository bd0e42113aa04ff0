"""Checks of a request before it is accepted: its pool, its tasks, and whether it may restrict the weights versions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from rollyard.api.pool_lookup import named_pool
from rollyard.api.services import Services
from rollyard.core.errors import Cause, Invalid, NotFound
from rollyard.kinds.base import get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import RolloutRequest, Task
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task_fields import BUILT_IN, check_task, offers_tools
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.waiting_reason import unknown_kind
from rollyard.server.routing.staleness import POLICY_ROLE
from rollyard.wire.tool_proof import CALLS_UNREADABLE


async def check_pools(services: Services, namespace: str, requests: Sequence[RolloutRequest]) -> dict[str, RolloutPool]:
    """Return the pools of these requests, by name. Raises Invalid if a pool cannot run its requests."""
    pools = {name: await named_pool(services, RolloutPool, namespace, name) for name in {r.pool for r in requests}}
    for name, pool in pools.items():
        if POLICY_ROLE not in pool.spec.inference:
            message = (
                f"RolloutPool {name!r} has no InferencePool for the role {POLICY_ROLE!r}, which agents sample from; "
                f"add `inference: {{{POLICY_ROLE}: <InferencePool>}}` to its spec"
            )
            raise Invalid(message, causes=[Cause("pool", message)])
        if any(r.min_weights_version is not None or r.weights is not None for r in requests if r.pool == name):
            await _check_versions(services, pool)
    return pools


async def _check_versions(services: Services, pool: RolloutPool) -> None:
    """Raise Invalid if the engines of the policy role are external: Rollyard does not know their weights versions."""
    inference = pool.spec.inference[POLICY_ROLE]
    fields = "min_weights_version, group_version and max_staleness"
    with contextlib.suppress(NotFound):
        found = await services.store.objects.get(
            InferencePool.key_of(pool.metadata.namespace, inference), InferencePool
        )
        if found.spec.engine.external is not None:
            raise Invalid(
                f"the engines of InferencePool {inference!r} are external, so their weights are not known: leave out {fields}"
            )


async def engines_take_priority(services: Services, pool: RolloutPool) -> bool:
    """Return whether the engines of the pool's policy role order waiting requests by priority."""
    with contextlib.suppress(NotFound):
        key = InferencePool.key_of(pool.metadata.namespace, pool.spec.inference[POLICY_ROLE])
        vllm = (await services.store.objects.get(key, InferencePool)).spec.engine.vllm
        return vllm is not None and vllm.takes_priority
    return False


async def check_tools(
    services: Services,
    requests: Sequence[RolloutRequest],
    pools: Mapping[str, RolloutPool],
    place: str = "rollouts[{}].task",
) -> None:
    """Raise Invalid for a task with tools whose model's calls would not be read.

    A rollout with a parser of its own is accepted; the node agent tries it out. `place`: as for `check_kinds`.
    """
    unread = {name: await _why_calls_unread(services, pool) for name, pool in pools.items()}
    for i, request in enumerate(requests):
        why, agent = unread[request.pool], request.agent
        if why is None or agent.command is not None or agent.tool_parser is not None or not offers_tools(request.task):
            continue
        inference = pools[request.pool].spec.inference[POLICY_ROLE]
        message = f"tool calls of InferencePool {inference!r} would not be read: {why}"
        raise Invalid(message, causes=[Cause(place.format(i), message, CALLS_UNREADABLE)])


async def _why_calls_unread(services: Services, pool: RolloutPool) -> str | None:
    """Return why the calls of the pool's policy are not read; None if they are, or if this is not known."""
    with contextlib.suppress(NotFound):
        key = InferencePool.key_of(pool.metadata.namespace, pool.spec.inference[POLICY_ROLE])
        found = await services.store.objects.get(key, InferencePool)
        condition = get_condition(found.status.conditions, "ToolCalls")
        if condition is not None and condition.status == "False":
            settled = (
                condition.observed_generation == found.metadata.generation
            )  # else a parser may have been named since
            return condition.message if settled else None
    return None


def check_kinds(
    services: Services,
    requests: Sequence[RolloutRequest],
    pools: Mapping[str, RolloutPool],
    place: str = "rollouts[{}].task",
) -> None:
    """Raise Invalid for a kind of task that neither the server nor any node agent knows.

    A kind that is not built in must also have a handler in a node agent of the request's pool. This is checked only
    while all desired node agents of the pool are connected (`_all_agents`).

    `place`: path of a task in the HTTP body. `{}` in the path stands for the index in `requests`.
    """
    known = services.task_kinds | services.node_agents.kinds()
    for i, request in enumerate(requests):
        kind, message = request.task.kind, None
        if kind not in known:
            message = (
                f"unknown task kind {kind!r}; known ones: {', '.join(sorted(known))}. Install a handler of another kind in the "
                "Python of the server and of the node agents, then restart them"
            )
        elif kind not in BUILT_IN and (node_agents := _all_node_agents(services, pools[request.pool])):
            message = unknown_kind(kind, request.pool, node_agents)
        if message is not None:
            raise Invalid(message, causes=[Cause(f"{place.format(i)}.kind", message)])


def check_tasks(tasks: Sequence[Task], place: str = "rollouts[{}]") -> None:
    """Raise Invalid for a task of a built-in kind with wrong fields.

    `place`: path in the HTTP body to which a cause's field is appended. `{}` in the path stands for the task's index.
    """
    for i, task in enumerate(tasks):
        try:
            check_task(task)
        except Invalid as error:
            causes = [Cause(f"{place.format(i)}.{c.field}", c.message, c.reason) for c in error.causes]
            raise Invalid(f"{place.format(i)}: {error}", causes=causes) from None


def _all_node_agents(services: Services, pool: RolloutPool) -> list[ConnectedNodeAgent]:
    """Return the pool's node agents if exactly the desired number is connected and none drains, else an empty list.

    The list is empty too for a suspended pool, and for a pool whose newest spec has not been processed yet.
    """
    status, node_agents = pool.status, services.node_agents.of_pool(pool.pool_key)
    settled = status.observed_generation == pool.metadata.generation and not pool.spec.suspend
    sizes = {status.replicas.desired, status.replicas.requested, status.replicas.ready, len(node_agents)}
    return node_agents if settled and len(sizes) == 1 and not any(a.draining for a in node_agents) else []
