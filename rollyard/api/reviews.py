"""Questions of a client about its own rights: `kubectl auth can-i`, `auth can-i --list` and `auth whoami`.

kubectl asks in protobuf. `_read_envelope` decodes as much of it as these questions need; the answers are JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.auth import CLAIMS
from rollyard.api.json_answer import json_answer
from rollyard.api.object_writes import MAX_BODY_BYTES, mapping_at
from rollyard.api.resources import RESOURCES, REVIEWS, Subresource, group_of, path_of
from rollyard.core.errors import BadRequest

PROTOBUF = "application/vnd.kubernetes.protobuf"
_ATTRIBUTES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}
_PATHS = {1: "path", 2: "verb"}


def routes() -> list[web.RouteDef]:
    answers = {
        "SelfSubjectAccessReview": _access,
        "SelfSubjectRulesReview": _rules,
        "SelfSubjectReview": _whoami,
    }
    return [web.post(f"{path_of(api)}/{review.name}", answers[review.kind]) for api, review in REVIEWS]


async def _access(request: web.Request) -> web.Response:
    """Say whether the caller may do something."""
    data = await request_bodies.read(request, MAX_BODY_BYTES)
    spec = _read_envelope(bytes(data)) if request.content_type == PROTOBUF else _read_spec(data)
    attributes, path = mapping_at(spec, "resourceAttributes"), mapping_at(spec, "nonResourceAttributes")
    why = "" if path else _refusal(attributes)
    status = {"allowed": not why, "reason": why or "this token has the admin's role, which may do all that exists here"}
    return json_answer(_answer("SelfSubjectAccessReview", status, spec), status=201)


async def _rules(request: web.Request) -> web.Response:
    """List what the caller may do."""
    await request_bodies.read(request, MAX_BODY_BYTES)
    rules = [
        {"verbs": list(part.verbs), "apiGroups": [group_of(api)], "resources": [name]} for api, name, part in _parts()
    ]
    paths = [{"verbs": ["*"], "nonResourceURLs": ["/*"]}]
    status = {"resourceRules": rules, "nonResourceRules": paths, "incomplete": False}
    return json_answer(_answer("SelfSubjectRulesReview", status, {}), status=201)


async def _whoami(request: web.Request) -> web.Response:
    """Name the caller, who is the subject of the token."""
    await request_bodies.read(request, MAX_BODY_BYTES)
    claims = request[CLAIMS]
    user = {"username": claims.subject, "groups": [f"rollyard:{claims.role.value}", "system:authenticated"]}
    return json_answer(_answer("SelfSubjectReview", {"userInfo": user}, {}), status=201)


def _answer(kind: str, status: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    (api,) = (api for api, review in REVIEWS if review.kind == kind)
    return {
        "kind": kind,
        "apiVersion": api,
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": status,
    }


def _parts() -> Iterator[tuple[str, str, Any]]:
    """Yield each resource and subresource with its API and its name in a path."""
    for resource in RESOURCES:
        yield resource.group_version, resource.kind.PLURAL, resource
        yield from ((resource.group_version, sub.name, sub) for sub in resource.subresources)
    yield from ((api, review.name, review) for api, review in REVIEWS)


def _refusal(attributes: Mapping[str, Any]) -> str:
    """Return the reason why nobody may do this; empty if the caller may."""
    verb, group, plural = (str(attributes.get(name, "")) for name in ("verb", "group", "resource"))
    name = "/".join(filter(None, (plural, attributes.get("subresource", ""))))
    if "*" in (verb, group, plural):
        return "not everything may be written: Rollyard alone writes allocations and events"
    found: list[Subresource] = [part for api, other, part in _parts() if group_of(api) == group and other == name]
    if not found:
        return f"this server has no resource {name!r} in the group {group!r}"
    if any(verb in part.verbs for part in found):
        return ""
    return f"{name} can be used with {', '.join(found[0].verbs)}"


def _read_spec(data: bytearray) -> dict[str, Any]:
    """Return the `spec` of a question in JSON. Raises BadRequest."""
    body = request_bodies.parse(data)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return mapping_at(body, "spec")


def _read_envelope(data: bytes) -> dict[str, Any]:
    """Return the `spec` of a SelfSubjectAccessReview in Kubernetes' protobuf form.

    The form is four magic bytes and a message `runtime.Unknown`, whose field 2 is the object. The numbers of the fields
    are those of k8s.io/api, authorization/v1/generated.proto. Raises BadRequest.
    """
    if not data.startswith(b"k8s\0"):
        raise BadRequest("the body is not a protobuf of Kubernetes; send JSON")
    spec = _message(_message(_message(data[4:]).get(2, b"")).get(2, b""))
    found = {}
    for field, name, names in ((1, "resourceAttributes", _ATTRIBUTES), (2, "nonResourceAttributes", _PATHS)):
        if field in spec:
            texts = _message(spec[field])
            found[name] = {names[n]: texts[n].decode(errors="replace") for n in texts.keys() & names.keys() if texts[n]}
    return found


def _message(data: bytes) -> dict[int, bytes]:
    """Return the fields with a length (texts, messages) of a protobuf message, by number. Raises BadRequest."""
    found, position = dict[int, bytes](), 0
    while position < len(data):
        key, position = _varint(data, position)
        match key & 7:
            case 0:
                _, position = _varint(data, position)
            case 2:
                length, position = _varint(data, position)
                found[key >> 3], position = data[position : position + length], position + length
            case other:
                raise BadRequest(f"the protobuf of the body has a field of wire type {other}; send JSON")
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte, position = data[position], position + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise BadRequest("the protobuf of the body is cut off; send JSON")
