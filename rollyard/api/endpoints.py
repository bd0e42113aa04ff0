"""`…/inferencepools/NAME/endpoints`: routes that list, add and remove external model servers while the pool runs.

The pool's spec contains the list of servers. So the addition or removal of a server has the
same effect as an `apply`.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import BaseModel

from rollyard.api.error_status import validated
from rollyard.api.json_patch import merge_patch
from rollyard.api.object_writes import BASE, object_key, parse_pool, read_body, retry_write
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES
from rollyard.core.errors import BadRequest, Invalid, NotFound
from rollyard.kinds.base import KindObject
from rollyard.kinds.engine_spec import ExternalEndpoint, base_url
from rollyard.kinds.inference_pool import EndpointStatus, InferencePool
from rollyard.kinds.registry import Pool
from rollyard.server.routing.probe_loop import external_id


def routes() -> list[web.RouteDef]:
    path = f"{BASE}/namespaces/{{namespace}}/{{plural:inferencepools}}/{{name}}/endpoints"
    return [web.get(path, _list), web.post(path, _add), web.delete(path, _remove)]


async def _list(request: web.Request) -> web.Response:
    """List all endpoints in the pool's status, and added external servers that the status does not show yet."""
    pool = await request.app[SERVICES].store.objects.get(object_key(request), InferencePool)
    items, known = list(pool.status.endpoints), {e.id for e in pool.status.endpoints}
    for external in _listed_endpoints(pool):
        id = external_id(pool.pool_key, external)
        if id not in known:
            items.append(EndpointStatus(id=id, url=external.base, reason="Probing", capacity=external.capacity))
    return web.json_response({"kind": "EndpointList", "items": [_dump(item) for item in items]})


async def _add(request: web.Request) -> web.Response:
    """Add an external server, or change a listed server's capacity or token. The answer is 201 if the server is new."""
    wanted = validated(ExternalEndpoint, await read_body(request), "the endpoint")
    new = True

    def added(current: KindObject) -> Pool:
        nonlocal new
        listed = _listed_endpoints(current)
        new = all(e.base != wanted.base for e in listed)
        others = [wanted if e.base == wanted.base else e for e in listed]
        return _write_endpoints(request, current, [*others, wanted] if new else others)

    await retry_write(request, added)
    return web.json_response(_dump(wanted), status=201 if new else 200)


@accepts("url")
async def _remove(request: web.Request) -> web.Response:
    """Remove an external server from the pool's spec. The server drains: each session moves at its next turn."""
    url = request.query.get("url", "")
    if not url:
        raise BadRequest("name the endpoint: DELETE …/endpoints?url=URL, with the URL as it is listed")

    def removed(current: KindObject) -> Pool:
        listed = _listed_endpoints(current)
        if all(e.base != base_url(url) for e in listed):
            there = ", ".join(e.url for e in listed) or "none"
            raise NotFound(f"inferencepool {current.metadata.name!r} has no endpoint {url}; it has: {there}")
        return _write_endpoints(request, current, [e for e in listed if e.base != base_url(url)])

    await retry_write(request, removed)
    return web.json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})


def _listed_endpoints(pool: KindObject) -> list[ExternalEndpoint]:
    assert isinstance(pool, InferencePool)
    if pool.spec.engine.external is None:
        return []
    return pool.spec.engine.external.endpoints


def _write_endpoints(request: web.Request, current: KindObject, endpoints: list[ExternalEndpoint]) -> Pool:
    assert isinstance(current, InferencePool)
    if current.spec.engine.external is None:
        raise Invalid(
            f"Rollyard starts the servers of inferencepool {current.metadata.name!r}; raise spec.replicas for more of "
            "them, or create a pool with spec.engine.external for servers that others run"
        )
    listed = [_dump(e) for e in endpoints]
    patch = {"spec": {"engine": {"external": {"endpoints": listed}}}}
    return parse_pool(request, merge_patch(current.dump(), patch))


def _dump(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)
