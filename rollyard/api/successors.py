"""Route of planned successors of allocations. It reads all namespaces unless one is given."""

from __future__ import annotations

from collections import defaultdict

from aiohttp import web

from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.planned_successor import PlannedSuccessors
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/allocations/successors", _planned_successors)]


@accepts("namespace")
async def _planned_successors(request: web.Request) -> web.Response:
    """List the successors that are still to be submitted, by the present plan."""
    services, namespace = request.app[SERVICES], request.query.get("namespace")
    owned = defaultdict[str, list[Allocation]](list)
    allocations, _ = await services.store.objects.list_objects(Allocation.__name__, namespace)
    for one in allocations:
        if isinstance(one, Allocation):
            owned[one.spec.pool.uid].append(one)
    pools = []
    for kind in (InferencePool, RolloutPool):
        pools += (await services.store.objects.list_objects(kind.__name__, namespace))[0]
    found = [
        successor
        for pool in pools
        if isinstance(pool, Pool)
        for successor in services.planned_successors(pool, owned[pool.metadata.uid])
    ]
    return web.json_response(PlannedSuccessors(successors=found).model_dump(mode="json"))
