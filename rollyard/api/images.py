"""`GET /v1/images`: the sandbox images that must not be deleted now."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.services import SERVICES
from rollyard.kinds.rollout_pool import RolloutPool


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/images", _needed)]


async def _needed(request: web.Request) -> web.Response:
    """List the images that unfinished rollouts and running batches name, and the default images of pools, in all namespaces."""
    store = request.app[SERVICES].store
    pools, _ = await store.objects.list_objects("RolloutPool")
    default = {pool.spec.sandbox.default_image or "" for pool in pools if isinstance(pool, RolloutPool)}
    return web.json_response({"needed": sorted({*await store.rollouts.images_needed(), *default} - {""})})
