"""`GET /v1/images`: the sandbox images that must not be deleted now, and those that pools cannot have now."""

from __future__ import annotations

from aiohttp import web

from rollyard.api.services import SERVICES
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.top import MissingImageView


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/images", _needed)]


async def _needed(request: web.Request) -> web.Response:
    """List the images that unfinished rollouts and running batches name, and the default images of pools, in all namespaces.
    List also the images that pools cannot have now, each with the reason."""
    store = request.app[SERVICES].store
    pools, _ = await store.objects.list_objects("RolloutPool")
    default = {pool.spec.sandbox.default_image or "" for pool in pools if isinstance(pool, RolloutPool)}
    missing = [
        MissingImageView(
            namespace=one.pool.namespace,
            pool=one.pool.name,
            image=one.image,
            message=one.message,
            permanent=one.permanent,
            failures=one.failures,
            since=one.since,
            until=one.until,
        ).model_dump(mode="json")
        for one in await store.rollouts.missing_images()
        if one.failures
    ]
    needed = sorted({*await store.rollouts.images_needed(), *default} - {""})
    return web.json_response({"needed": needed, "missing": missing})
