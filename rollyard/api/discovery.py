"""Discovery routes, which kubectl and Kubernetes client libraries call first."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from rollyard.api.query_parameters import accepts
from rollyard.kinds.base import API_VERSION, GROUP, VERSION
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import KINDS

GIT_VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0+rollyard", "platform": "linux/amd64"}
"""Version for kubectl. kubectl warns if this minor version and kubectl's own differ by more than one."""
_READ = ["get", "list", "watch"]


def routes() -> list[web.RouteDef]:
    answers: dict[str, dict[str, Any]] = {
        "/version": GIT_VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": _resources("v1", [_resource("events", "event", "Event", ["ev"], _READ)]),
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]},
        f"/apis/{GROUP}": {**_group(), "kind": "APIGroup", "apiVersion": "v1"},
        f"/apis/{API_VERSION}": _resources(API_VERSION, _own_group()),
    }
    # Some client libraries add a slash at the end.
    return [web.get(path + slash, _fixed(body)) for path, body in answers.items() for slash in ("", "/")]


def _fixed(body: dict[str, Any]) -> Any:
    @accepts("timeout")  # `kubectl version` sends this parameter
    async def answer(_: web.Request) -> web.Response:
        """Describe the API for kubectl and client libraries."""
        return web.json_response(body)

    return answer


def _group() -> dict[str, Any]:
    version = {"groupVersion": API_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def _resources(group_version: str, resources: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resource(name: str, singular: str, kind: str, short: list[str], verbs: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "singularName": singular,
        "kind": kind,
        "namespaced": True,
        "shortNames": short,
        "verbs": verbs,
        "categories": ["rollyard"],
    }


def _own_group() -> list[dict[str, Any]]:
    found = []
    for word, kind in KINDS.items():
        if word == "Event":  # events are served under /api/v1, where kubectl reads them
            continue
        verbs = [*_READ, "delete"] + (["create", "update", "patch"] if kind.USER_WRITTEN else [])
        found.append(_resource(kind.PLURAL, kind.SINGULAR, word, list(kind.SHORT), verbs))
        if kind.USER_WRITTEN:
            scale = _resource(f"{kind.PLURAL}/scale", "", "Scale", [], ["get", "update", "patch"])
            found.append({**scale, "group": "autoscaling", "version": "v1"})
            found.append(_resource(f"{kind.PLURAL}/script", "", "Submission", [], ["get", "create"]))
        if kind is InferencePool:
            found.append(_resource(f"{kind.PLURAL}/weights", "", "WeightsUpdate", [], ["get", "create"]))
    return found
