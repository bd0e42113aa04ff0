"""`GET /v1/images`: the sandbox images that must not be deleted now, and those that pools cannot have now."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.services import SERVICES
from rollyard.kinds.rollout_pool import RolloutPool


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/images", _needed)]


async def _needed(request: web.Request) -> web.Response:
    """List the images that unfinished rollouts and running batches name, and the default images of pools, in all namespaces.
    List also the images that pools cannot have now, each with the reason."""
    services = request.app[SERVICES]
    store = services.store
    pools, _ = await store.objects.list_objects("RolloutPool")
    default = {pool.pool_key: pool.spec.sandbox.default_image or "" for pool in pools if isinstance(pool, RolloutPool)}
    missing = [
        one.model_dump(mode="json")
        for pool in sorted({one.pool for one in await store.rollouts.missing_images()})
        for one in await services.rollouts.failing_images(pool, default.get(pool, ""))
    ]
    needed = sorted({*await store.rollouts.images_needed(), *default.values()} - {""})
    return web.json_response({"needed": needed, "missing": missing})
