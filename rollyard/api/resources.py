"""Table of the resources below /api and /apis, for discovery, for OpenAPI and for the routes of objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rollyard.core.errors import NotFound
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import API_VERSION, KindObject
from rollyard.kinds.event import Event
from rollyard.kinds.foreign import CustomResourceDefinition, Namespace, Service
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import KINDS

READ = ("get", "list", "watch")
DELETE = ("delete", "deletecollection")
WRITE = ("create", "update", "patch")
EVENTS_API = "events.k8s.io/v1"
CRD_API = "apiextensions.k8s.io/v1"


@dataclass(frozen=True)
class Subresource:
    """Path below an object, or a kind that can only be created (`name` without a slash)."""

    name: str
    kind: str
    verbs: Sequence[str]
    group_version: str = ""
    """API of `kind`; empty if it is the API of the resource."""
    namespaced: bool = True


@dataclass(frozen=True)
class Resource:
    """Kind of object in one API. Objects of a kind can be in several APIs, in another form in each."""

    group_version: str
    kind: type[KindObject]
    verbs: Sequence[str] = READ
    categories: Sequence[str] = ()
    namespaced: bool = True
    form: Callable[[KindObject], dict[str, Any]] = lambda obj: obj.dump()
    """Function that returns an object's JSON in this API."""
    subresources: Sequence[Subresource] = ()

    @property
    def word(self) -> str:
        name: str = self.kind.model_fields["kind"].default
        return name


def _own(kind: type[KindObject]) -> Resource:
    subresources: list[Subresource] = []
    if kind.USER_WRITTEN:
        subresources = [
            Subresource(f"{kind.PLURAL}/scale", "Scale", ("get", "update", "patch"), "autoscaling/v1"),
            Subresource(f"{kind.PLURAL}/script", "Submission", ("get", "create")),
        ]
    if kind is Allocation:
        subresources.append(Subresource(f"{kind.PLURAL}/drain", "Drain", ("create",)))
    if kind is InferencePool:
        subresources.append(Subresource(f"{kind.PLURAL}/weights", "WeightsUpdate", ("get", "create")))
    verbs = (*READ, *DELETE, *(WRITE if kind.USER_WRITTEN else ()))
    return Resource(API_VERSION, kind, verbs, ("all", "rollyard"), subresources=subresources)


def _core_event(event: KindObject) -> dict[str, Any]:
    return {**event.dump(), "apiVersion": "v1", "source": {"component": "rollyard"}}


def _new_event(event: KindObject) -> dict[str, Any]:
    """Return an event in the form of events.k8s.io/v1."""
    data = event.dump()
    return {
        "apiVersion": EVENTS_API,
        "kind": "Event",
        "metadata": data["metadata"],
        "regarding": data["involvedObject"],
        "note": data["message"],
        **{name: data[name] for name in ("type", "reason")},
        "action": data["reason"],
        "reportingController": "rollyard.dev/server",
        "reportingInstance": "rollyard",
        "eventTime": event.last_timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(event, Event) else None,
        "deprecatedSource": {"component": "rollyard"},
        "deprecatedFirstTimestamp": data["firstTimestamp"],
        "deprecatedLastTimestamp": data["lastTimestamp"],
        "deprecatedCount": data["count"],
    }


_OWN_EVENTS = Resource(API_VERSION, Event)
"""Events as our own client reads them. Discovery does not show this resource, because kubectl reads events of `v1`."""
RESOURCES: Sequence[Resource] = (
    *(_own(kind) for kind in KINDS.values() if kind is not Event),
    Resource("v1", Event, form=_core_event),
    Resource("v1", Namespace, namespaced=False),
    Resource("v1", Service),
    Resource(EVENTS_API, Event, form=_new_event),
    Resource(CRD_API, CustomResourceDefinition, namespaced=False),
)
REVIEWS: Sequence[tuple[str, Subresource]] = tuple(
    (group_version, Subresource(name, kind, ("create",), namespaced=False))
    for group_version, name, kind in (
        ("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("authorization.k8s.io/v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        ("authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview"),
    )
)
"""Kinds that are answered and not stored, with their APIs."""
GROUP_VERSIONS: Sequence[str] = tuple(
    dict.fromkeys([*(r.group_version for r in RESOURCES), *(group_version for group_version, _ in REVIEWS)])
)


def path_of(group_version: str) -> str:
    """Return the path of an API: `/api/v1`, or below `/apis`."""
    return f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"


def group_of(group_version: str) -> str:
    """Return the group of an API; empty for the core API `v1`."""
    return group_version.rpartition("/")[0]


def resource_at(group_version: str, plural: str) -> Resource:
    """Return a resource by the parts of its path. Raises NotFound."""
    there = {r.kind.PLURAL: r for r in (_OWN_EVENTS, *RESOURCES) if r.group_version == group_version}
    if plural not in there:
        raise NotFound(f"there is no resource {plural!r}; the resources are {', '.join(sorted(there))}")
    return there[plural]


def resource_of(request: web.Request) -> Resource:
    """Return the resource of a request below /api or /apis. Raises NotFound."""
    _, root, *parts = request.path.split("/")
    return resource_at(parts[0] if root == "api" else "/".join(parts[:2]), request.match_info["plural"])
