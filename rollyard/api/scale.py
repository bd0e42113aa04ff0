"""`…/PLURAL/NAME/scale`: the size of a pool as a `Scale` of autoscaling/v1."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from rollyard.api.json_answer import json_answer
from rollyard.api.json_patch import merge_patch
from rollyard.api.object_writes import (
    BASE,
    mapping_at,
    object_key,
    objects_of,
    parse_pool,
    read_body,
    retry_write,
    writable,
)
from rollyard.api.objects import read_patch
from rollyard.core.errors import BadRequest, Invalid, NotFound
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import Pool


def routes() -> list[web.RouteDef]:
    path = f"{BASE}/namespaces/{{namespace}}/{{plural}}/{{name}}/scale"
    return [web.get(path, _get), web.put(path, _put), web.patch(path, _patch)]


async def _get(request: web.Request) -> web.Response:
    """Read the size of a pool as a `Scale`."""
    return json_answer(_scale_of(await objects_of(request).get(object_key(request))))


async def _put(request: web.Request) -> web.Response:
    """Set the size of a pool with a `Scale`."""
    writable(request)
    body = await read_body(request)
    if body.get("kind") == "Scale":  # Kubernetes' clients leave out the number 0
        body = merge_patch({"spec": {"replicas": 0}}, body)

    def scaled(current: KindObject) -> Pool:
        return _scaled(request, current, body)

    return json_answer(_scale_of(await retry_write(request, scaled)))


async def _patch(request: web.Request) -> web.Response:
    """Set the size of a pool by a patch of its `Scale`."""
    writable(request)
    change = await read_patch(request)

    def scaled(current: KindObject) -> Pool:
        return _scaled(request, current, change(_scale_of(current)))

    return json_answer(_scale_of(await retry_write(request, scaled)))


def _scaled(request: web.Request, current: KindObject, scale: Any) -> Pool:
    if not isinstance(scale, dict):
        raise BadRequest("a Scale must be a JSON object")
    replicas = mapping_at(scale, "spec").get("replicas")
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        raise Invalid("spec.replicas must be a whole number, at least 0")
    if isinstance(current, Pool) and current.spec.autoscaling is not None:
        raise Invalid(
            "the size of this pool follows the demand; change spec.autoscaling, or remove it and set spec.replicas"
        )
    version = mapping_at(scale, "metadata").get("resourceVersion") or current.metadata.resource_version
    wanted = {"spec": {"replicas": replicas}, "metadata": {"resourceVersion": version}}
    return parse_pool(request, merge_patch(current.dump(), wanted))


def _scale_of(obj: KindObject) -> dict[str, Any]:
    if not isinstance(obj, Pool):
        raise NotFound(f"{obj.PLURAL} cannot be scaled")
    meta = obj.dump_metadata()
    names = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": names,
        "spec": {"replicas": obj.spec.replicas if obj.spec.replicas is not None else obj.status.replicas.desired},
        "status": {"replicas": obj.status.replicas.observed, "selector": ""},
    }
