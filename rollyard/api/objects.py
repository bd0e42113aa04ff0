"""All kinds, with the paths and verbs of Kubernetes: list, watch, get, create, replace, patch, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from rollyard.api import query_parameters, request_bodies
from rollyard.api.error_status import NEW_NAME
from rollyard.api.json_answer import json_answer
from rollyard.api.json_patch import json_patch, merge_patch
from rollyard.api.list_pages import PAGES, ListPages
from rollyard.api.listed_objects import DEFAULT, changes_seen, list_objects, namespaces
from rollyard.api.model_check import check_model
from rollyard.api.object_watch import stream
from rollyard.api.object_writes import (
    BASE,
    deletable,
    is_dry_run,
    mapping_at,
    new_object,
    object_key,
    objects_of,
    parse_pool,
    read_body,
    read_json,
    retry_write,
    with_name,
    writable,
    write,
)
from rollyard.api.representation import list_body, respond_object, warn, with_warnings
from rollyard.api.resources import RESOURCES, group_of, path_of, resource_of
from rollyard.api.selectors import selector
from rollyard.api.services import SERVICES
from rollyard.api.slurm_warning import warn_while_slurm_is_away
from rollyard.core.errors import BadRequest, Forbidden, Invalid, NotFound, UnsupportedMediaType
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import KINDS, Pool
from rollyard.store.objects import check_preconditions

MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


def set_up(app: web.Application) -> None:
    app[PAGES] = ListPages()


def routes() -> list[web.RouteDef]:
    found: list[web.RouteDef] = []
    for root in dict.fromkeys(path_of(r.group_version) for r in RESOURCES):
        many, one = (
            f"{root}/namespaces/{{namespace}}/{{plural}}",
            f"{root}/namespaces/{{namespace}}/{{plural}}/{{name}}",
        )
        found += [
            web.get(f"{root}/{{plural}}", _list),
            web.get(f"{root}/{{plural}}/{{name}}", _get),
            web.get(many, _list),
            web.get(one, _get),
            web.post(f"{root}/{{plural}}", _create),
            web.post(many, _create),
            *(web.delete(path, _delete) for path in (one, f"{root}/{{plural}}/{{name}}")),
            *(web.delete(path, _delete_many) for path in (many, f"{root}/{{plural}}")),
        ]
    own = f"{BASE}/namespaces/{{namespace}}/{{plural}}/{{name}}"
    found += [web.put(own, _replace), web.patch(own, _patch), web.get(f"{own}/status", _get)]
    return [*found, *(method(f"{own}/status", _refuse_status) for method in (web.put, web.patch))]


async def _list(request: web.Request) -> web.StreamResponse:
    """List the objects of a kind, or watch them with `watch=1`."""
    resource, namespace, store = resource_of(request), request.match_info.get("namespace"), objects_of(request)
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    passes = selector(labels, fields)

    async def present() -> tuple[list[KindObject], str]:
        found, version = await list_objects(store, resource, namespace)
        return [o for o in found if passes(o)], version

    if query_parameters.flag(request, "watch"):
        word = resource.word if resource.word in KINDS else None
        seen = await changes_seen(store, resource, namespace, passes, request.query.get("resourceVersion", ""))
        return await stream(request, resource, present, lambda since: store.watch(word, since), seen)
    pages, clock = request.app[PAGES], request.app[SERVICES].clock
    limit, query = query_parameters.integer(request, "limit", 0), f"{request.path}?{labels}&{fields}"
    if token := request.query.get("continue"):
        page = pages.next(token, query, limit, clock)
    else:
        page = pages.first(*await present(), query, limit, clock)
    metadata: dict[str, Any] = {"resourceVersion": page.version}
    if page.token:
        metadata |= {"continue": page.token, "remainingItemCount": page.remaining}
    # In a thread, because a thousand objects take long enough to block the event loop.
    body = await asyncio.to_thread(list_body, request, resource, page.items, metadata)
    await warn_while_slurm_is_away(request, resource)
    return with_warnings(request, web.Response(body=body, content_type="application/json"))


async def _get(request: web.Request) -> web.Response:
    """Read an object."""
    resource, found = resource_of(request), await _read(request)
    await warn_while_slurm_is_away(request, resource)
    return respond_object(request, resource, found)


async def _read(request: web.Request) -> KindObject:
    """Return the object in the path. Raises NotFound."""
    resource, name = resource_of(request), request.match_info["name"]
    if resource.word in KINDS and "namespace" in request.match_info:
        return await objects_of(request).get(object_key(request))
    found, _ = ([], "") if resource.namespaced else await list_objects(objects_of(request), resource, None)
    for obj in found:
        if obj.metadata.name == name:
            return obj
    raise NotFound(f'{resource.kind.PLURAL}{"." if "/" in resource.group_version else ""}'
                   f'{group_of(resource.group_version)} "{name}" not found')  # fmt: skip


async def _create(request: web.Request) -> web.Response:
    """Create an object."""
    resource = writable(request)
    if "namespace" not in request.match_info:
        raise BadRequest(f"create {resource.kind.PLURAL} below …/namespaces/NAMESPACE/")
    body = with_name(await read_body(request))
    request[NEW_NAME] = str(mapping_at(body, "metadata").get("name", ""))
    obj = await new_object(request, await request_bodies.run_in_parser_thread(parse_pool, request, body))
    await check_model(obj)
    known = {DEFAULT, *await namespaces(objects_of(request))}
    if obj.metadata.namespace not in known:
        there = ", ".join(sorted(known))
        warn(request, f'namespace "{obj.metadata.namespace}" had no objects before; the others are {there}')
    made = obj if is_dry_run(request) else await objects_of(request).create(obj)
    return respond_object(request, resource, made, 201)


async def _replace(request: web.Request) -> web.Response:
    """Replace an object."""
    resource = writable(request)
    obj = await request_bodies.run_in_parser_thread(parse_pool, request, await read_body(request))
    current = await objects_of(request).get(object_key(request))
    return respond_object(request, resource, await write(request, current, obj))


async def _patch(request: web.Request) -> web.Response:
    """Change an object by a merge patch or a JSON patch."""
    resource, change = writable(request), await read_patch(request)

    def patched(current: KindObject) -> Pool:
        merged = change(current.dump())
        if not isinstance(merged, dict):
            raise Invalid("after this patch the object is no JSON object")
        metadata = mapping_at(merged, "metadata")
        version = metadata.get("resourceVersion") or current.metadata.resource_version
        return parse_pool(request, {**merged, "metadata": {**metadata, "resourceVersion": version}})

    return respond_object(request, resource, await retry_write(request, patched))


async def read_patch(request: web.Request) -> Callable[[Any], Any]:
    """Read a patch, and return the function that applies it to JSON. Raises UnsupportedMediaType for other dialects."""
    if request.content_type not in (MERGE_PATCH, JSON_PATCH):
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            f"{JSON_PATCH}, {MERGE_PATCH}"
        )
    body = await read_json(request)
    if request.content_type == JSON_PATCH:
        return lambda target: json_patch(target, body)
    if not isinstance(body, dict):
        raise BadRequest(f"a merge patch must be a JSON object; for a list of operations send {JSON_PATCH}")
    return lambda target: merge_patch(target, body)


async def _refuse_status(request: web.Request) -> web.Response:
    """Refuse a write of the status."""
    raise Forbidden(f"Rollyard alone writes the status of {resource_of(request).kind.PLURAL}; change the spec instead")


async def _delete(request: web.Request) -> web.Response:
    """Delete an object."""
    resource = deletable(request)
    options = await _delete_options(request)
    uid, version = _preconditions(options)
    key = object_key(request)
    if _is_dry(request, options):
        current = await objects_of(request).get(key)
        check_preconditions(current, uid, version)
        return respond_object(request, resource, current)
    last = await objects_of(request).delete(key, uid=uid, version=version)
    if last.metadata.finalizers:
        return respond_object(request, resource, last)
    group = group_of(resource.group_version)
    details = {"name": key.name, "group": group, "kind": resource.kind.PLURAL, "uid": last.metadata.uid}
    return json_answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})


async def _delete_many(request: web.Request) -> web.Response:
    """Delete all objects that match the selectors. Return them."""
    resource, options = deletable(request), await _delete_options(request)
    passes = selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    found, version = await list_objects(objects_of(request), resource, request.match_info.get("namespace"))
    gone: list[KindObject] = []
    for obj in filter(passes, found):
        if not _is_dry(request, options):
            try:
                obj = await objects_of(request).delete(obj.key, uid=obj.metadata.uid)
            except NotFound:
                continue
        gone.append(obj)
    body = await asyncio.to_thread(list_body, request, resource, gone, {"resourceVersion": version})
    return web.Response(body=body, content_type="application/json")


async def _delete_options(request: web.Request) -> dict[str, Any]:
    """Read the options of a deletion. Raises Invalid for one that would leave jobs without a pool."""
    options = await read_body(request, empty=True)
    policy = options.get("propagationPolicy") or request.query.get("propagationPolicy")
    orphan = policy == "Orphan" or options.get("orphanDependents") is True
    orphan = orphan or query_parameters.flag(request, "orphanDependents")
    if orphan and resource_of(request).kind.USER_WRITTEN:
        raise Invalid(
            "the allocations of a pool cannot outlive it: delete it without `--cascade=orphan` "
            "(propagationPolicy Orphan). The pool drains, and disappears after its allocations"
        )
    return options


def _preconditions(options: dict[str, Any]) -> tuple[str, str]:
    """Return the required uid and resourceVersion; an empty one is not required. Raises BadRequest."""
    conditions = mapping_at(options, "preconditions")
    wanted = [conditions.get(name) or "" for name in ("uid", "resourceVersion")]
    if not all(isinstance(value, str) for value in wanted):
        raise BadRequest("preconditions.uid and preconditions.resourceVersion must be strings")
    return wanted[0], wanted[1]


def _is_dry(request: web.Request, options: dict[str, Any]) -> bool:
    return is_dry_run(request) or options.get("dryRun") == ["All"]
