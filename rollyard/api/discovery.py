"""Discovery routes, which kubectl and Kubernetes client libraries call first."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from rollyard.api.json_answer import json_answer
from rollyard.api.query_parameters import accepts
from rollyard.api.resources import GROUP_VERSIONS, RESOURCES, REVIEWS, Resource, Subresource, group_of, path_of

MINOR = "36"
"""Minor version of Kubernetes for kubectl, which warns if its own differs by more than one."""
VERSION_INFO = {
    "major": "1",
    "minor": MINOR,
    "gitVersion": f"v1.{MINOR}.0+rollyard",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": platform.python_implementation(),
    "platform": "linux/amd64",
}


def routes() -> list[web.RouteDef]:
    answers: dict[str, dict[str, Any]] = {
        "/version": VERSION_INFO,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g) for g in _groups()]},
        **{path_of(group_version): _resources(group_version) for group_version in GROUP_VERSIONS},
        **{f"/apis/{g}": {**_group(g), "kind": "APIGroup", "apiVersion": "v1"} for g in _groups()},
    }
    # Some client libraries add a slash at the end.
    return [web.get(path, _fixed(body)) for p, body in answers.items() for path in sorted({p, p.rstrip("/") + "/"})]


def _fixed(body: dict[str, Any]) -> Any:
    @accepts("timeout")  # `kubectl version` sends this parameter
    async def answer(_: web.Request) -> web.Response:
        """Describe the API for kubectl and client libraries."""
        return json_answer(body)

    return answer


def _groups() -> Sequence[str]:
    return [group for g in GROUP_VERSIONS if (group := group_of(g))]


def _group(group: str) -> dict[str, Any]:
    versions = [g for g in GROUP_VERSIONS if group_of(g) == group]
    shown = [{"groupVersion": v, "version": v.rpartition("/")[2]} for v in versions]
    return {"name": group, "versions": shown, "preferredVersion": shown[0], "serverAddressByClientCIDRs": []}


def _resources(group_version: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for resource in RESOURCES:
        if resource.group_version == group_version:
            found += [_resource(resource), *map(_subresource, resource.subresources)]
    found += [_subresource(review) for where, review in REVIEWS if where == group_version]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def _resource(resource: Resource) -> dict[str, Any]:
    kind = resource.kind
    shown = {
        "name": kind.PLURAL,
        "singularName": kind.SINGULAR,
        "namespaced": resource.namespaced,
        "kind": resource.word,
        "verbs": list(resource.verbs),
        "shortNames": list(kind.SHORT),
    }
    return {**shown, "categories": list(resource.categories)} if resource.categories else shown


def _subresource(sub: Subresource) -> dict[str, Any]:
    shown = {
        "name": sub.name,
        "singularName": "" if "/" in sub.name else sub.kind.lower(),
        "namespaced": sub.namespaced,
        "kind": sub.kind,
        "verbs": list(sub.verbs),
    }
    group, _, version = sub.group_version.rpartition("/")
    return {**shown, "group": group, "version": version} if version else shown
