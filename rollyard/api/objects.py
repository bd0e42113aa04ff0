"""All kinds, with the paths and verbs of Kubernetes: list, watch, get, create, replace, merge patch, scale, delete."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rollyard.api import query_parameters, request_bodies, table
from rollyard.api.error_status import status_body
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.selectors import Predicate, selector
from rollyard.api.services import SERVICES
from rollyard.core.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    UnsupportedMediaType,
)
from rollyard.kinds.base import API_VERSION, KindObject, ObjectKey, ObjectMeta, evolve
from rollyard.kinds.registry import BY_PLURAL, Pool
from rollyard.kinds.schema.validation import validate_object
from rollyard.server.store.base import Store, WatchEvent

BASE = f"/apis/{API_VERSION}"
DEFAULT_WATCH_SECONDS, MAX_WATCH_SECONDS = 1800, 7200
WRITE_RETRIES = 5
MAX_BODY_BYTES = 3 << 20
"""Greatest size of a body, as in the API server of Kubernetes."""
MAX_OBJECT_BYTES = 3 << 19
"""Greatest size of an object, as in etcd."""
WARNINGS: web.RequestKey[Sequence[str]] = web.RequestKey("warnings", Sequence[str])
"""Warnings about an accepted request, for the caller."""


def routes() -> list[web.RouteDef]:
    one, many = f"{BASE}/namespaces/{{namespace}}/{{plural}}/{{name}}", f"{BASE}/namespaces/{{namespace}}/{{plural}}"
    events = "/api/v1/namespaces/{namespace}/{plural:events}"
    return [
        web.get(f"{BASE}/{{plural}}", _list),
        web.get("/api/v1/{plural:events}", _list),
        *[route for path in (many, events) for route in (web.get(path, _list),)],
        web.post(many, _create),
        web.get(one, _get),
        web.get(f"{events}/{{name}}", _get),
        web.put(one, _replace),
        web.patch(one, _patch),
        web.delete(one, _delete),
        web.get(f"{one}/status", _get),
        web.get(f"{one}/scale", _get_scale),
        web.put(f"{one}/scale", _put_scale),
        web.patch(f"{one}/scale", _put_scale),
    ]


def _kind(request: web.Request) -> type[KindObject]:
    kind = BY_PLURAL.get(request.match_info["plural"])
    if kind is None:
        raise NotFound(
            f"there is no resource {request.match_info['plural']!r}; the resources are {', '.join(sorted(BY_PLURAL))}"
        )
    return kind


def writable(request: web.Request) -> type[KindObject]:
    kind = _kind(request)
    if not kind.USER_WRITTEN:
        raise Forbidden(f"Rollyard manages {kind.PLURAL} itself; change the pool that owns them")
    return kind


def object_key(request: web.Request) -> ObjectKey:
    info = request.match_info
    name: str = _kind(request).model_fields["kind"].default
    return ObjectKey(kind=name, namespace=info["namespace"], name=info["name"])


def _store(request: web.Request) -> Store:
    return request.app[SERVICES].store


def _as_json(request: web.Request, obj: KindObject) -> dict[str, Any]:
    """Return the object as JSON. Below /api/v1 its apiVersion is `v1`, because kubectl expects events of core/v1."""
    core = {"apiVersion": "v1"} if request.path.startswith("/api/v1/") else {}
    return obj.dump() | core


def _respond_object(request: web.Request, obj: KindObject, status: int = 200) -> web.Response:
    if table.is_table_requested(request):
        return respond(request, table.table_of(type(obj), [obj], obj.metadata.resource_version), status)
    return respond(request, _as_json(request, obj), status)


def respond(request: web.Request, body: dict[str, Any], status: int = 200) -> web.Response:
    """Return a JSON response. The request's warnings become `Warning` headers, which kubectl prints.

    RFC 7234, 5.5 defines the header; RFC 9110, 5.6.4 defines the quoting.
    """
    response = web.json_response(body, status=status)
    for text in request.get(WARNINGS, ()):
        response.headers.add("Warning", f'299 - "{_quoted(text)}"')
    return response


def _quoted(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", re.sub(r"[\x00-\x1f\x7f]+", " ", text))


async def read_body(request: web.Request, *, empty: bool = False) -> dict[str, Any]:
    """Read a JSON object. With `empty`, a missing body is accepted and gives an empty object.

    Raises BadRequest, TooLarge, RequestTimeout, UnsupportedMediaType.
    """
    data = await request_bodies.read(request, MAX_BODY_BYTES)
    body = await request_bodies.run_in_parser_thread(request_bodies.parse, data) if data or not empty else {}
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def mapping_at(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the mapping in the body's field `name`; empty if the field is missing or null. Raises BadRequest."""
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise BadRequest(f"{name} must be a JSON object")
    return found or {}


def _is_dry_run(request: web.Request) -> bool:
    return "dryRun" in request.query


def parse_pool(request: web.Request, body: dict[str, Any]) -> Pool:
    """Parse a user's object for this path, without its `status`. For a large object this takes long.

    Raises Invalid, BadRequest, TooLarge; NotFound for an unknown kind, Forbidden for a kind that users do not write.
    """
    kind = writable(request)
    name = kind.model_fields["kind"].default
    if body.get("kind", name) != name:
        raise BadRequest(f"this path accepts {name}, but the body has kind {body['kind']!r}")
    metadata = {"namespace": request.match_info["namespace"], **mapping_at(body, "metadata")}
    obj = validate_object({"apiVersion": API_VERSION, "kind": name, **body, "metadata": metadata, "status": {}})
    if obj.metadata.namespace != request.match_info["namespace"]:
        raise BadRequest("metadata.namespace differs from the namespace in the path")
    assert isinstance(obj, Pool)
    if (size := len(obj.model_dump_json(by_alias=True, exclude_none=True))) > MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} {obj.metadata.name!r} has {size} bytes; at most {MAX_OBJECT_BYTES} are allowed")
    return obj


async def _list(request: web.Request) -> web.StreamResponse:
    """List the objects of a kind, or watch them with `watch=1`."""
    kind = _kind(request)
    word = kind.model_fields["kind"].default
    namespace = request.match_info.get("namespace")
    passes = selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    if query_parameters.flag(request, "watch"):
        return await _watch(request, kind, namespace, passes)
    found, version = await _store(request).list_objects(word, namespace)
    items = [o for o in found if passes(o)]

    def body() -> bytes:
        if table.is_table_requested(request):
            return to_json(table.table_of(kind, items, version))
        return to_json({
            "kind": f"{word}List",
            "apiVersion": "v1" if request.path.startswith("/api/v1/") else API_VERSION,
            "metadata": {"resourceVersion": version},
            "items": [_as_json(request, o) for o in items],
        })  # fmt: skip

    # In a thread, because a thousand objects take long enough to block the event loop.
    return web.Response(body=await asyncio.to_thread(body), content_type="application/json")


async def _watch(
    request: web.Request, kind: type[KindObject], namespace: str | None, passes: Predicate
) -> web.StreamResponse:
    store, word = _store(request), kind.model_fields["kind"].default
    since = request.query.get("resourceVersion", "0")
    seconds = min(query_parameters.integer(request, "timeoutSeconds", DEFAULT_WATCH_SECONDS), MAX_WATCH_SECONDS)
    mark_long_lived(request)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)

    async def send(type: str, body: dict[str, Any]) -> None:
        await response.write(json.dumps({"type": type, "object": body}).encode() + b"\n")

    async def send_event(event: WatchEvent) -> None:
        obj = event.object
        if (namespace is None or obj.metadata.namespace == namespace) and passes(obj):
            as_table = table.is_table_requested(request)
            await send(
                event.type,
                table.table_of(kind, [obj], obj.metadata.resource_version) if as_table else _as_json(request, obj),
            )

    try:
        async with asyncio.timeout(seconds):
            if since in ("", "0"):
                found, since = await store.list_objects(word, namespace)
                for obj in found:
                    await send_event(WatchEvent("ADDED", obj))
            async for event in store.watch(word, since):
                await send_event(event)
    except TimeoutError:
        pass
    except ApiError as error:  # kubectl expects this error as an event at the end of a watch
        await send("ERROR", status_body(error))
    return response


async def _get(request: web.Request) -> web.Response:
    """Read an object."""
    return _respond_object(request, await _store(request).get(object_key(request)))


async def _create(request: web.Request) -> web.Response:
    """Create an object."""
    obj = await request_bodies.run_in_parser_thread(parse_pool, request, await read_body(request))
    check_site(request, obj)
    meta = obj.metadata
    fresh = ObjectMeta(name=meta.name, namespace=meta.namespace, labels=meta.labels, annotations=meta.annotations)
    obj = evolve(obj, metadata=fresh)
    if _is_dry_run(request):
        return _respond_object(request, obj, 201)
    return _respond_object(request, await _store(request).create(obj), 201)


async def _replace(request: web.Request) -> web.Response:
    """Replace an object."""
    obj = await request_bodies.run_in_parser_thread(parse_pool, request, await read_body(request))
    if obj.metadata.name != request.match_info["name"]:
        raise BadRequest("metadata.name differs from the name in the path; objects cannot be renamed")
    current = await _store(request).get(object_key(request))
    return _respond_object(request, await _write(request, current, obj))


async def _write(request: web.Request, current: KindObject, wanted: Pool) -> KindObject:
    """Write the user's spec, labels and annotations, and keep the other metadata. A dry run writes nothing.

    Raises Conflict if the user's metadata has another uid than the stored object or, except in a dry run, another
    resourceVersion. Raises Invalid for a pool that this site can never start.
    """
    meta = wanted.metadata
    if meta.uid and meta.uid != current.metadata.uid:
        raise Conflict("metadata.uid differs: the object was deleted and created again; read it again")
    kept = evolve(
        current.metadata, labels=meta.labels, annotations=meta.annotations, resource_version=meta.resource_version
    )
    merged = evolve(current, metadata=kept, spec=wanted.spec)
    if not isinstance(current, Pool) or current.spec.allocation != wanted.spec.allocation:
        check_site(request, wanted)
    return merged if _is_dry_run(request) else await _store(request).update(merged, "spec")


def check_site(request: web.Request, pool: Pool) -> None:
    """Raise Invalid for a pool that this site can never start. Less certain problems become warnings."""
    causes, request[WARNINGS] = request.app[SERVICES].check_allocation(pool)
    if causes:
        words = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise Invalid(f"{pool.kind} {pool.metadata.name!r} could never start here: {words}", causes=causes)


async def _patch(request: web.Request) -> web.Response:
    """Change an object by a merge patch."""
    if request.content_type != "application/merge-patch+json":
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: application/merge-patch+json"
        )
    writable(request)
    patch = await read_body(request)
    version = mapping_at(patch, "metadata").get("resourceVersion")

    def patched(current: KindObject) -> Pool:
        merged = merge_patch(current.dump(), patch)
        metadata = {**mapping_at(merged, "metadata"), "resourceVersion": version or current.metadata.resource_version}
        merged = {**merged, "metadata": metadata}
        return parse_pool(request, merged)

    return _respond_object(request, await retry_write(request, patched, tries=1 if version else WRITE_RETRIES))


async def retry_write(
    request: web.Request, wanted: Callable[[KindObject], Pool], tries: int = WRITE_RETRIES
) -> KindObject:
    """Write `wanted(current)`, and try again after a conflict with another write. Raises Conflict after the last try."""
    while True:
        tries -= 1
        current = await _store(request).get(object_key(request))
        try:
            return await _write(request, current, await request_bodies.run_in_parser_thread(wanted, current))
        except Conflict:
            if tries <= 0:
                raise


def merge_patch(target: Any, patch: Any) -> Any:
    """Merge by RFC 7396: objects are merged, null removes a field, and any other value replaces the old value."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


async def _delete(request: web.Request) -> web.Response:
    """Delete an object."""
    kind, key = _kind(request), object_key(request)
    if key.kind == "Event":
        raise Forbidden("events cannot be deleted; the server removes old ones itself")
    options = await read_body(request, empty=True)
    uid = mapping_at(options, "preconditions").get("uid")
    if _is_dry_run(request) or options.get("dryRun") == ["All"]:
        return _respond_object(request, await _store(request).get(key))
    last = await _store(request).delete(key, uid=uid)
    if last.metadata.finalizers:
        return _respond_object(request, last)
    details = {"name": key.name, "group": API_VERSION.partition("/")[0], "kind": kind.PLURAL, "uid": last.metadata.uid}
    return web.json_response(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )


async def _get_scale(request: web.Request) -> web.Response:
    """Read the size of a pool as a `Scale`."""
    return web.json_response(_scale(await _store(request).get(object_key(request))))


async def _put_scale(request: web.Request) -> web.Response:
    """Set the size of a pool with a `Scale`."""
    writable(request)
    replicas = mapping_at(await read_body(request), "spec").get("replicas")
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        raise Invalid("spec.replicas must be a whole number, at least 0")

    def scaled(current: KindObject) -> Pool:
        if isinstance(current, Pool) and current.spec.autoscaling is not None:
            raise Invalid(
                "the size of this pool follows the demand; change spec.autoscaling, or remove it and set spec.replicas"
            )
        return parse_pool(request, merge_patch(current.dump(), {"spec": {"replicas": replicas}}))

    return web.json_response(_scale(await retry_write(request, scaled)))


def _scale(obj: KindObject) -> dict[str, Any]:
    if not isinstance(obj, Pool):
        raise NotFound(f"{obj.PLURAL} cannot be scaled")
    meta = obj.metadata
    names = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": names,
        "spec": {"replicas": obj.spec.replicas if obj.spec.replicas is not None else obj.status.replicas.desired},
        "status": {"replicas": obj.status.replicas.observed, "selector": ""},
    }
