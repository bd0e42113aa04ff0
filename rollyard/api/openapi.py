"""`/openapi/v3`: an index, and one document for each API, from which kubectl validates, explains and chooses patches.

The schemas come from the pydantic models, with the docstrings of their fields.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

from aiohttp import hdrs, web
from pydantic_core import to_json

from rollyard.api.json_answer import json_answer
from rollyard.api.query_parameters import accepts
from rollyard.api.resources import GROUP_VERSIONS, RESOURCES, Resource, group_of, path_of
from rollyard.core.errors import NotFound
from rollyard.crds_yaml.generate import object_schema
from rollyard.kinds.base import ObjectMeta

INDEX = "/openapi/v3"
_INFO = {"title": "Rollyard", "version": "v1"}
_OLD_FORM = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_OLD_PROTOBUF = b"\n\x032.0\x12\x0e\n\x08Rollyard\x12\x02v1B\x00J\x00"
"""The fields swagger, info (title, version), paths and definitions of gnostic's message openapi.v2.Document."""
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")
_LIST_PARAMETERS = (
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")
_METHODS = {"get": "get", "list": "get", "create": "post", "update": "put", "patch": "patch", "delete": "delete"}


def routes() -> list[web.RouteDef]:
    return [web.get(INDEX, _index), web.get(f"{INDEX}/{{path:.+}}", _document), web.get("/openapi/v2", _old_document)]


@accepts("timeout")
async def _index(request: web.Request) -> web.Response:
    """List the documents, with a hash of each."""
    return await asyncio.to_thread(_index_response)


def _index_response() -> web.Response:
    paths = {
        p: {"serverRelativeURL": f"{INDEX}/{p}?hash={_encoded(p)[1]}"} for p in map(_document_path, GROUP_VERSIONS)
    }
    return json_answer({"paths": paths})


@accepts("hash", "timeout")
async def _document(request: web.Request) -> web.Response:
    """Describe one API."""
    path = request.match_info["path"]
    if path not in map(_document_path, GROUP_VERSIONS):
        raise NotFound(f"there is no {request.path}; see {INDEX}")
    body, digest = await asyncio.to_thread(_encoded, path)
    headers = {hdrs.ETAG: f'"{digest}"', hdrs.CACHE_CONTROL: "no-cache, private", hdrs.VARY: "Accept"}
    if request.query.get("hash") == digest:
        headers[hdrs.CACHE_CONTROL] = "public, max-age=31536000, immutable"
    if f'"{digest}"' in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", headers=headers)


@accepts("timeout")
async def _old_document(request: web.Request) -> web.Response:
    """Return an OpenAPI 2 document without content. With it, kubectl before 1.27 leaves all checks to the server."""
    if "protobuf" in request.headers.get(hdrs.ACCEPT, ""):
        return web.Response(body=_OLD_PROTOBUF, content_type=_OLD_FORM)
    return json_answer({"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": {}})


def _document_path(group_version: str) -> str:
    return path_of(group_version).removeprefix("/")


@functools.cache
def _encoded(path: str) -> tuple[bytes, str]:
    """Return a document and its hash."""
    body = to_json(document(next(g for g in GROUP_VERSIONS if _document_path(g) == path)))
    return body, hashlib.sha256(body).hexdigest()[:32].upper()


def document(group_version: str) -> dict[str, Any]:
    """Return the OpenAPI document of an API."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {
        f"{_META}.ObjectMeta": object_schema(ObjectMeta),
        f"{_META}.ListMeta": {
            "type": "object",
            "description": "Metadata of a list.",
            "properties": {
                "resourceVersion": {"type": "string", "description": "Version from which to watch."},
                "continue": {"type": "string", "description": "Token of the next page."},
                "remainingItemCount": {"type": "integer", "format": "int64", "description": "Number of further items."},
            },
        },
    }
    for resource in RESOURCES:
        if resource.group_version == group_version:
            schemas |= _schemas(resource)
            paths |= _paths(resource)
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schemas(resource: Resource) -> dict[str, Any]:
    name, schema = _schema_name(resource), object_schema(resource.kind)
    texts = {
        "apiVersion": {"type": "string", "description": f"`{resource.group_version}`."},
        "kind": {"type": "string", "description": f"`{resource.word}`."},
        "metadata": {"allOf": [_reference(f"{_META}.ObjectMeta")], "default": {}, "description": "Standard metadata."},
    }
    schema["properties"] |= texts
    schema["required"] = [field for field in schema.get("required", ()) if field not in texts]
    items = {"type": "array", "items": {"allOf": [_reference(name)], "default": {}}, "description": "Objects."}
    metadata = {"allOf": [_reference(f"{_META}.ListMeta")], "default": {}, "description": "Metadata of the list."}
    listed = {
        "type": "object",
        "description": f"List of {resource.kind.PLURAL}.",
        "required": ["items"],
        "properties": {**texts, "kind": {"type": "string"}, "items": items, "metadata": metadata},
    }
    return {
        name: {**schema, "x-kubernetes-group-version-kind": [_gvk(resource, resource.word)]},
        f"{name}List": {**listed, "x-kubernetes-group-version-kind": [_gvk(resource, f"{resource.word}List")]},
    }


def _paths(resource: Resource) -> dict[str, Any]:
    root, plural = path_of(resource.group_version), resource.kind.PLURAL
    many = f"{root}/namespaces/{{namespace}}/{plural}" if resource.namespaced else f"{root}/{plural}"
    named = [_parameter("name", "path"), *([_parameter("namespace", "path")] if resource.namespaced else [])]
    found = {
        many: {**dict(_operations(resource, ("list", "create"))), "parameters": named[1:]},
        f"{many}/{{name}}": {**dict(_operations(resource, ("get", "update", "patch", "delete"))), "parameters": named},
    }
    if resource.namespaced:
        found[f"{root}/{plural}"] = dict(_operations(resource, ("list",)))
    return found


def _operations(resource: Resource, verbs: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for verb in verbs:
        if verb not in resource.verbs:
            continue
        writes = verb in ("create", "update", "patch")
        query = _LIST_PARAMETERS if verb == "list" else _WRITE_PARAMETERS if writes or verb == "delete" else ("pretty",)
        name = _schema_name(resource) + ("List" if verb == "list" else "")
        answer = {"description": "OK", "content": {"application/json": {"schema": _reference(name)}}}
        operation = {
            "description": f"{verb.title()} {resource.kind.PLURAL}.",
            "operationId": f"{verb}{resource.word}",
            "parameters": [_parameter(p, "query") for p in query],
            "responses": {"201" if verb == "create" else "200": answer},
            "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
            "x-kubernetes-group-version-kind": _gvk(resource, resource.word),
        }
        if verb == "patch":
            operation["requestBody"] = {"content": {form: {"schema": {"type": "object"}} for form in _PATCHES}}
        elif writes:
            operation["requestBody"] = {"content": {"application/json": {"schema": _reference(name)}}}
        yield _METHODS[verb], operation


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema = {"type": "string", "uniqueItems": True}
    return {"name": name, "in": place, "schema": schema, **({"required": True} if place == "path" else {})}


def _schema_name(resource: Resource) -> str:
    group, _, version = resource.group_version.rpartition("/")
    reversed_group = ".".join(reversed(group.split("."))) if group else "io.k8s.api.core"
    return f"{reversed_group}.{version}.{resource.word}"


def _gvk(resource: Resource, kind: str) -> dict[str, str]:
    return {
        "group": group_of(resource.group_version),
        "version": resource.group_version.rpartition("/")[2],
        "kind": kind,
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
