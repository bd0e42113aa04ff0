"""`GET .../namespaces/NAMESPACE/top`, or `.../top` for all namespaces: pools with their present metrics."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from aiohttp import web

from rollyard.api.costly_answers import costly
from rollyard.api.object_writes import BASE
from rollyard.api.query_parameters import accepts, namespace_of, seconds
from rollyard.api.services import SERVICES, Services
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.schema.columns import pool_reason, ready_count
from rollyard.kinds.top import (
    ImageStorageTop,
    InferencePoolTop,
    NodesTop,
    NodeTop,
    RolloutPoolTop,
    SandboxTop,
    SavedWorkTop,
    TopView,
)
from rollyard.server.rollouts.stage_load import stage_load
from rollyard.server.routing.endpoint_metrics import endpoint_status, metrics_of, total_metrics
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.store.rollout_search import NodeEnd

NODES_SECONDS = 3600.0


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{BASE}/top", _top),
        web.get(f"{BASE}/namespaces/{{namespace}}/top", _top),
        web.get("/v1/nodes", _nodes),
    ]


@accepts("namespace", "since")
@costly
async def _nodes(request: web.Request) -> web.Response:
    """Read the nodes on which rollouts ended since a time (Unix seconds; default: an hour ago), the slowest INIT first."""
    services = request.app[SERVICES]
    since = seconds(request, "since", max(0.0, services.clock.time() - NODES_SECONDS))
    ends = await services.store.rollouts.ends_by_node(namespace_of(request), since)
    found = await asyncio.to_thread(_by_node, ends)
    return web.json_response(NodesTop(since=since, nodes=found).model_dump(mode="json"))


def _by_node(ends: Sequence[NodeEnd]) -> list[NodeTop]:
    of_node: defaultdict[str, list[NodeEnd]] = defaultdict(list)
    for end in ends:
        of_node[end.node].append(end)
    nodes = [
        NodeTop(
            node=node,
            rollouts=len(found),
            faults=dict(Counter(end.fault for end in found if end.fault is not None).most_common()),
            init_median=_median([end.init for end in found if end.init is not None]),
            run_median=_median([end.run for end in found if end.run is not None]),
        )
        for node, found in of_node.items()
    ]
    return sorted(nodes, key=lambda one: (-(one.init_median or 0.0), one.node))


def _median(values: Sequence[float]) -> float | None:
    return round(median(values), 3) if values else None


async def _top(request: web.Request) -> web.Response:
    """Read pools and endpoints with their present load."""
    services, namespace = request.app[SERVICES], request.match_info.get("namespace")
    serving, _ = await services.store.objects.list_objects("InferencePool", namespace)
    running, _ = await services.store.objects.list_objects("RolloutPool", namespace)
    sessions, states = services.endpoints.sessions.counts(), services.endpoints.all()
    saved = await services.store.rollouts.all_resume_totals()
    rollouts = [await _rollouts(services, pool, saved) for pool in running if isinstance(pool, RolloutPool)]

    def body() -> str:
        of_pool = _by_pool(states)
        found = [p for p in serving if isinstance(p, InferencePool)]
        inference = [_inference(p, of_pool[p.pool_key], sessions) for p in found]
        return TopView(inference_pools=inference, rollout_pools=rollouts).model_dump_json(
            by_alias=True, exclude_none=True
        )

    # In a thread, because a thousand endpoints would block the event loop.
    return web.Response(text=await asyncio.to_thread(body), content_type="application/json")


def _by_pool(states: Sequence[EndpointState]) -> Mapping[PoolKey, list[EndpointState]]:
    found: defaultdict[PoolKey, list[EndpointState]] = defaultdict(list)
    for state in states:
        found[state.pool].append(state)
    return found


def _inference(pool: InferencePool, states: Sequence[EndpointState], sessions: Mapping[str, int]) -> InferencePoolTop:
    return InferencePoolTop(
        **_common_fields(pool),
        sessions=sum(sessions.get(state.endpoint.id, 0) for state in states),
        weights_versions=sorted({state.endpoint.weights_version for state in states if state.ready}),
        load=total_metrics(states),
        endpoints=[endpoint_status(state, sessions, metrics_of(state)) for state in states],
    )


async def _rollouts(services: Services, pool: RolloutPool, saved: Mapping[PoolKey, tuple[int, int]]) -> RolloutPoolTop:
    """Count the stages now: the pool's status has the counts of its last reconcile, which may be seconds old."""
    key = pool.pool_key
    queued, in_flight = await services.rollouts.queued(key), services.rollouts.leases.in_flight(*key)
    pace = services.rollouts.completion_rate.per_minute(key)
    stages = stage_load(queued, in_flight, services.node_agents.of_pool(key))
    kept = sum(len(agent.kept) for agent in services.node_agents.of_pool(key))
    sandboxes = SandboxTop(**services.node_agents.sandboxes(key).model_dump(), kept=kept)
    ended = None if pace is None else {status.value: round(rate, 1) for status, rate in pace.items()}
    turns, snapshots = saved.get(key, (0, 0))
    return RolloutPoolTop(
        **_common_fields(pool),
        stages=stages,
        sandboxes=sandboxes,
        images=ImageStorageTop(**services.node_agents.image_storage(key).model_dump()),
        saved=SavedWorkTop(turns=turns, snapshots=snapshots),
        ended_per_minute=ended,
    )


def _common_fields(pool: Pool) -> dict[str, object]:
    return {
        "namespace": pool.metadata.namespace,
        "name": pool.metadata.name,
        "replicas": evolve(pool.status.replicas, ready=ready_count(pool.status)),
        "reason": pool_reason(pool.status.conditions),
    }
