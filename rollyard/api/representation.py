"""Forms in which a client may ask for objects: the objects themselves, a `Table`, or their metadata alone.

Kubernetes' name for a form is in the header `Accept`, such as `application/json;as=Table;v=v1;g=meta.k8s.io`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from aiohttp import hdrs, web
from pydantic_core import to_json

from rollyard.api.json_answer import json_answer
from rollyard.api.resources import Resource
from rollyard.kinds.base import KindObject
from rollyard.kinds.schema.columns import columns

META_API = "meta.k8s.io/v1"
WARNINGS: web.RequestKey[Sequence[str]] = web.RequestKey("warnings", Sequence[str])
"""Warnings about an accepted request, for the caller."""
MAX_WARNINGS, MAX_WARNING = 20, 1000
"""Greatest number of warnings, and of characters of each. Clients refuse a response with very many or long headers."""
_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


def respond(request: web.Request, body: dict[str, Any], status: int = 200) -> web.Response:
    """Return a JSON response with the request's warnings."""
    return with_warnings(request, json_answer(body, status=status))


def with_warnings(request: web.Request, response: web.Response) -> web.Response:
    """Add the request's warnings to a response as `Warning` headers, which kubectl prints.

    RFC 7234, 5.5 defines the header; RFC 9110, 5.6.4 defines the quoting.
    """
    texts = list(request.get(WARNINGS, ()))
    if len(texts) > MAX_WARNINGS:
        texts[MAX_WARNINGS - 1 :] = [f"and {len(texts) - MAX_WARNINGS + 1} more warnings"]
    for text in texts:
        response.headers.add("Warning", f'299 - "{_quoted(text[:MAX_WARNING])}"')
    return response


def warn(request: web.Request, *texts: str) -> None:
    request[WARNINGS] = (*request.get(WARNINGS, ()), *texts)


def respond_object(request: web.Request, resource: Resource, obj: KindObject, status: int = 200) -> web.Response:
    return respond(request, object_body(request, resource, obj), status)


def object_body(request: web.Request, resource: Resource, obj: KindObject) -> dict[str, Any]:
    """Return an object in the form that the request asks for."""
    match _form(request):
        case "Table":
            return _table(request, resource, [obj], {"resourceVersion": obj.metadata.resource_version})
        case "PartialObjectMetadata":
            return _metadata_alone(obj)
        case _:
            return resource.form(obj)


def list_body(request: web.Request, resource: Resource, items: Sequence[KindObject], metadata: dict[str, Any]) -> bytes:
    """Return a list in the form that the request asks for. Takes long for a thousand objects."""
    match _form(request):
        case "Table":
            return to_json(_table(request, resource, items, metadata))
        case "PartialObjectMetadataList":
            kind, api, shown = "PartialObjectMetadataList", META_API, [_metadata_alone(o) for o in items]
        case _:
            kind, api, shown = f"{resource.word}List", resource.group_version, [resource.form(o) for o in items]
    return to_json({"kind": kind, "apiVersion": api, "metadata": metadata, "items": shown})


def bookmark_body(request: web.Request, resource: Resource, version: str, *, initial_end: bool) -> dict[str, Any]:
    """Return the object of a BOOKMARK event, which has no content but a resourceVersion."""
    metadata: dict[str, Any] = {"resourceVersion": version, "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    if _form(request).startswith("Partial"):
        return {"kind": "PartialObjectMetadata", "apiVersion": META_API, "metadata": metadata}
    return {"kind": resource.word, "apiVersion": resource.group_version, "metadata": metadata}


def _form(request: web.Request) -> str:
    """Return the first form in `Accept` that can be had here; empty for the objects themselves."""
    for media in request.headers.get(hdrs.ACCEPT, "").split(","):
        _, *parameters = (part.strip() for part in media.split(";"))
        form = next((p.removeprefix("as=") for p in parameters if p.startswith("as=")), "")
        if form in _FORMS:
            return form
        if not form and re.match(r"\s*(application/(json|\*)|\*/\*)", media):
            return ""
    return ""


def _metadata_alone(obj: KindObject) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": META_API, "metadata": obj.dump_metadata()}


def _table(
    request: web.Request, resource: Resource, items: Sequence[KindObject], metadata: dict[str, Any]
) -> dict[str, Any]:
    """Return a Table with one row for each object. `includeObject` says how much of the object comes with its row."""
    shown, now = columns(resource.kind), datetime.now(UTC)
    definitions = [
        {
            "name": c.name.title(),
            "type": "string",
            "format": "name" if c.name == "NAME" else "",
            "description": c.description,
            "priority": int(c.wide),
        }
        for c in shown
    ]
    include = request.query.get("includeObject", "Metadata")
    rows = [{"cells": [c.cell(o, now) for c in shown], "object": _row_object(resource, o, include)} for o in items]
    return {
        "kind": "Table",
        "apiVersion": META_API,
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _row_object(resource: Resource, obj: KindObject, include: Literal["None", "Metadata", "Object"] | str) -> Any:
    if include == "None":
        return None
    return resource.form(obj) if include == "Object" else _metadata_alone(obj)


def _quoted(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", re.sub(r"[\x00-\x1f\x7f]+", " ", text))
