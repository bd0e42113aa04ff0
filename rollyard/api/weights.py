"""`POST …/inferencepools/NAME/weights` begins an update of the pool's weights. `GET` shows the weights, and the
last update.

`POST` writes the update to the pool's status. From there the pool's reconciler reads the update and carries it out. The
route and the reconciler write the status with the resourceVersion that they have read, so neither overwrites a change by
the other.
"""

from __future__ import annotations

from aiohttp import web

from rollyard.api.error_status import validated
from rollyard.api.model_check import check_update
from rollyard.api.object_writes import BASE, read_body
from rollyard.api.representation import respond
from rollyard.api.services import SERVICES, Services
from rollyard.core.clock import as_exact_datetime
from rollyard.core.errors import Conflict, Invalid
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate
from rollyard.server.weights.pool_update import begin

WRITE_RETRIES = 20


def routes() -> list[web.RouteDef]:
    path = f"{BASE}/namespaces/{{namespace}}/inferencepools/{{name}}/weights"
    return [web.get(path, _get), web.post(path, _post)]


async def _get(request: web.Request) -> web.Response:
    """Read the weights that the pool serves, and the last update."""
    return _respond(request, (await _pool(request)).status.weights, 200)


async def _post(request: web.Request) -> web.Response:
    """Begin an update. The answer is 202 if the update begins, or if endpoints at which it failed try it again. The answer
    is 200 if the same update is running or done."""
    update = validated(WeightsUpdate, await read_body(request), "the update")
    services, tries = request.app[SERVICES], WRITE_RETRIES
    await check_update(await _pool(request), update)
    while True:
        pool, tries = await _pool(request), tries - 1
        weights, new = _begin(services, pool, update)
        if not new:
            return _respond(request, weights, 200)
        status = evolve(pool.status, weights=weights)
        try:
            await services.store.objects.update(evolve(pool, status=status), "status")
        except Conflict:
            if tries <= 0:
                raise
            continue  # something else has written the pool meanwhile, such as its reconciler or another trainer
        return _respond(request, weights, 202)


def _begin(services: Services, pool: InferencePool, update: WeightsUpdate) -> tuple[WeightsStatus, bool]:
    name, spec = pool.metadata.name, pool.spec
    if pool.metadata.deletion_timestamp is not None:
        raise Conflict(f"InferencePool {name!r} is being deleted")
    if spec.engine.external is not None:
        raise Invalid(
            f"the engines of InferencePool {name!r} are external; load the weights there by your own means. "
            "Rollyard can update only engines that it starts (engine.vllm, engine.embedded)"
        )
    return begin(pool.status.weights, spec.model.path, update, as_exact_datetime(services.clock.time()))


async def _pool(request: web.Request) -> InferencePool:
    info = request.match_info
    return await request.app[SERVICES].pools.inference_pool_in_path(info["namespace"], info["name"])


def _respond(request: web.Request, weights: WeightsStatus, status: int) -> web.Response:
    return respond(request, weights.model_dump(mode="json", by_alias=True, exclude_none=True), status)
