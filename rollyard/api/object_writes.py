"""Bodies of users' objects, and writes of these objects to the store."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.model_check import check_model
from rollyard.api.representation import WARNINGS, warn
from rollyard.api.resources import Resource, path_of, resource_of
from rollyard.api.services import SERVICES
from rollyard.core.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound, TooLarge
from rollyard.kinds.base import API_VERSION, FINALIZER, KindObject, ObjectKey, ObjectMeta, evolve
from rollyard.kinds.engine_spec import EngineSpec, ModelSpec
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import KINDS, Pool
from rollyard.kinds.schema.validation import validate_object, without_unknown_fields
from rollyard.store.object_store import ObjectStore
from rollyard.store.objects import check_preconditions

BASE = path_of(API_VERSION)
WRITE_RETRIES = 5
MAX_BODY_BYTES = 3 << 20
"""Greatest size of a body, as in the API server of Kubernetes."""
MAX_OBJECT_BYTES = 3 << 19
"""Greatest size of an object, as in etcd."""
MAX_PREFIX = 58
"""Greatest length of a `generateName` that is used; a longer one is cut."""
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names, as in Kubernetes: without vowels, so that no word appears."""


def objects_of(request: web.Request) -> ObjectStore:
    return request.app[SERVICES].store.objects


def writable(request: web.Request) -> Resource:
    """Return the resource of a request. Raises NotFound, and Forbidden for a resource that users do not write."""
    resource = resource_of(request)
    if not resource.kind.USER_WRITTEN:
        raise Forbidden(_why_not(resource))
    return resource


def deletable(request: web.Request) -> Resource:
    """Return the resource of a request. Raises NotFound, and Forbidden for a resource that users cannot delete."""
    resource = resource_of(request)
    if "delete" not in resource.verbs:
        raise Forbidden(_why_not(resource))
    return resource


def _why_not(resource: Resource) -> str:
    match resource.word:
        case "Event":
            return "Rollyard writes and removes events itself"
        case "Namespace":
            return "a namespace exists while it contains a pool; create a pool in it, or delete its last pool"
        case "CustomResourceDefinition":
            return "the kinds of this server are fixed"
        case _:
            return f"Rollyard manages {resource.kind.PLURAL} itself; change the pool that owns them"


def object_key(request: web.Request) -> ObjectKey:
    """Return the key of the object in the path. Raises NotFound for a path without a namespace, and for an unknown kind."""
    info, resource = request.match_info, resource_of(request)
    if "namespace" not in info:
        raise NotFound(f"{resource.kind.PLURAL} are below …/namespaces/NAMESPACE/{resource.kind.PLURAL}")
    return ObjectKey(kind=resource.word, namespace=info["namespace"], name=info["name"])


async def read_body(request: web.Request, *, empty: bool = False) -> dict[str, Any]:
    """Read a JSON object. With `empty`, a missing body is accepted and gives an empty object.

    Raises BadRequest, TooLarge, RequestTimeout, UnsupportedMediaType.
    """
    body = await read_json(request, empty=empty)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


async def read_json(request: web.Request, *, empty: bool = False) -> Any:
    """Read JSON. With `empty`, a missing body gives an empty object. Raises the errors of `read_body`."""
    data = await request_bodies.read(request, MAX_BODY_BYTES)
    return await request_bodies.run_in_parser_thread(request_bodies.parse, data) if data or not empty else {}


def mapping_at(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the mapping in the body's field `name`; empty if the field is missing or null. Raises BadRequest."""
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise BadRequest(f"{name} must be a JSON object")
    return found or {}


def is_dry_run(request: web.Request) -> bool:
    return "dryRun" in request.query


def parse_pool(request: web.Request, body: dict[str, Any]) -> Pool:
    """Parse a user's object for this path, without its `status`. For a large object this takes long.

    An unknown field is an error, except if the parameter `fieldValidation` is Warn or Ignore: then it is dropped.

    Raises Invalid, BadRequest, TooLarge; NotFound for an unknown kind, Forbidden for a kind that users do not write.
    """
    name, path = writable(request).word, request.match_info
    if body.get("kind", name) != name:
        raise BadRequest(f"this path accepts {name}, but the body has kind {body['kind']!r}")
    metadata = {"namespace": path["namespace"], **mapping_at(body, "metadata")}
    data = {"apiVersion": API_VERSION, "kind": name, **body, "metadata": metadata, "status": {}}
    if (validation := request.query.get("fieldValidation")) in ("Warn", "Ignore"):
        data, dropped = without_unknown_fields(data)
        if validation == "Warn":
            warn(request, *(f'unknown field "{field}"' for field in dropped))
    obj = validate_object(data)
    if obj.metadata.namespace != path["namespace"]:
        raise BadRequest(
            f"the namespace of the object ({obj.metadata.namespace}) does not match the namespace in the path "
            f"({path['namespace']})"
        )
    if "name" in path and obj.metadata.name != path["name"]:
        raise BadRequest("metadata.name differs from the name in the path; objects cannot be renamed")
    assert isinstance(obj, Pool)
    if (size := len(obj.model_dump_json(by_alias=True, exclude_none=True))) > MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} {obj.metadata.name!r} has {size} bytes; at most {MAX_OBJECT_BYTES} are allowed")
    return obj


def with_name(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a new object with a name, made from `metadata.generateName` if it has none."""
    metadata = mapping_at(body, "metadata")
    prefix = metadata.get("generateName")
    if metadata.get("name") or not isinstance(prefix, str):
        return body
    name = prefix[:MAX_PREFIX] + "".join(secrets.choice(_LETTERS) for _ in range(5))
    return {**body, "metadata": {**metadata, "name": name}}


async def new_object(request: web.Request, pool: Pool) -> Pool:
    """Return a pool to create: only with the metadata that users write. Raises Invalid as `check_site` does."""
    await check_site(request, pool)
    _warn_of_owners(request, pool.metadata)
    meta = pool.metadata
    users = ("name", "namespace", "labels", "annotations", "finalizers", "owner_references")
    return evolve(pool, metadata=ObjectMeta.model_construct(**{field: getattr(meta, field) for field in users}))


async def write(request: web.Request, current: KindObject, wanted: Pool) -> KindObject:
    """Write the user's spec and metadata. A dry run writes nothing.

    Raises Conflict if the user's metadata has another uid or resourceVersion than the stored object. Raises Invalid for
    a pool that this site can never start.
    """
    meta = wanted.metadata
    check_preconditions(current, meta.uid, meta.resource_version)
    kept = evolve(
        current.metadata,
        labels=meta.labels,
        annotations=meta.annotations,
        finalizers=_finalizers(request, current.metadata, meta),
        owner_references=meta.owner_references,
        resource_version=meta.resource_version,
    )
    if meta.owner_references != current.metadata.owner_references:
        _warn_of_owners(request, meta)
    merged = evolve(current, metadata=kept, spec=wanted.spec)
    if not isinstance(current, Pool) or current.spec.allocation != wanted.spec.allocation:
        await check_site(request, wanted)
    if isinstance(wanted, InferencePool) and _served(current) != _served(wanted):
        await check_model(wanted)
    if not is_dry_run(request):
        return await objects_of(request).update(merged, "spec")
    return evolve(merged, metadata=evolve(kept, resource_version=current.metadata.resource_version))


def _served(pool: KindObject) -> tuple[ModelSpec, EngineSpec] | None:
    return (pool.spec.model, pool.spec.engine) if isinstance(pool, InferencePool) else None


def _finalizers(request: web.Request, current: ObjectMeta, wanted: ObjectMeta) -> list[str]:
    """Return the user's finalizers, and our own: only the pool's reconciler removes this one, after the last job."""
    names = list(dict.fromkeys(wanted.finalizers))
    if FINALIZER not in current.finalizers or FINALIZER in names:
        return names
    if request.method == "PATCH" or "finalizers" in wanted.model_fields_set:
        warn(request, f"metadata.finalizers: {FINALIZER} stays until the pool's jobs have ended")
    return [FINALIZER, *names]


def _warn_of_owners(request: web.Request, meta: ObjectMeta) -> None:
    for owner in meta.owner_references:
        if owner.api_version != API_VERSION or owner.kind not in KINDS:
            text = f"this server has no {owner.kind} of {owner.api_version}, so the object is not deleted with it"
            warn(request, f"metadata.ownerReferences: {text}")


async def check_site(request: web.Request, pool: Pool) -> None:
    """Raise Invalid for a pool that this site can never start. Less certain problems become warnings."""
    causes, warnings = await request.app[SERVICES].check_allocation(pool)
    warn(request, *(text for text in warnings if text not in request.get(WARNINGS, ())))
    if causes:
        words = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise Invalid(f"{pool.kind} {pool.metadata.name!r} could never start here: {words}", causes=causes)


async def retry_write(request: web.Request, wanted: Callable[[KindObject], Pool]) -> KindObject:
    """Write `wanted(current)`, and try again after a conflict with another write. Raises Conflict after the last try."""
    tries = WRITE_RETRIES
    while True:
        tries -= 1
        request[WARNINGS] = ()
        current = await objects_of(request).get(object_key(request))
        try:
            return await write(request, current, await request_bodies.run_in_parser_thread(wanted, current))
        except Conflict:
            if tries <= 0:
                raise
