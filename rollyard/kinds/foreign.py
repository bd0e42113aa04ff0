"""Kinds of Kubernetes that the server shows but does not store, for kubectl and operators."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, Literal

from rollyard.kinds.base import KindObject, ObjectMeta, evolve


class ClusterObject(KindObject):
    """Object outside all namespaces."""

    api_version: str  # type: ignore[assignment]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"metadata": self.dump_metadata()}

    def dump_metadata(self) -> dict[str, Any]:
        data = super().dump_metadata()
        del data["namespace"]
        return data


class Namespace(ClusterObject):
    """Namespace. It exists while it contains a pool or an allocation; `default` always exists."""

    PLURAL: ClassVar[str] = "namespaces"
    SINGULAR: ClassVar[str] = "namespace"
    SHORT: ClassVar[tuple[str, ...]] = ("ns",)

    api_version: str = "v1"
    kind: Literal["Namespace"] = "Namespace"
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {"phase": "Active"}


class Service(KindObject):
    """Service of Kubernetes. This server has none; `kubectl cluster-info` asks for them."""

    PLURAL: ClassVar[str] = "services"
    SINGULAR: ClassVar[str] = "service"
    SHORT: ClassVar[tuple[str, ...]] = ("svc",)

    kind: Literal["Service"] = "Service"


class CustomResourceDefinition(ClusterObject):
    """Definition of a kind. It never changes while the server runs."""

    PLURAL: ClassVar[str] = "customresourcedefinitions"
    SINGULAR: ClassVar[str] = "customresourcedefinition"
    SHORT: ClassVar[tuple[str, ...]] = ("crd", "crds")

    api_version: str = "apiextensions.k8s.io/v1"
    kind: Literal["CustomResourceDefinition"] = "CustomResourceDefinition"
    spec: dict[str, Any]
    status: dict[str, Any] = {}


def namespace_of(name: str, objects: Iterable[KindObject]) -> Namespace:
    """Return the namespace of these objects. It is as old as its oldest object."""
    times = [o.metadata.creation_timestamp for o in objects if o.metadata.creation_timestamp is not None]
    labels = {"kubernetes.io/metadata.name": name}
    meta = ObjectMeta(name=name, namespace=name, labels=labels, creation_timestamp=min(times, default=None))
    return Namespace(metadata=_with_uid(meta, name))


def definition_of(crd: dict[str, Any], served_since: datetime) -> CustomResourceDefinition:
    """Return the definition as a server shows it, with the status of one that is in use."""
    name, names = crd["metadata"]["name"], crd["spec"]["names"]
    meta = evolve(ObjectMeta(name="crd", creation_timestamp=served_since), name=name)
    conditions = [
        {
            "type": type,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": served_since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        for type, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in crd["spec"]["versions"]]
    status = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}
    return CustomResourceDefinition(metadata=_with_uid(meta, name), spec=crd["spec"], status=status)


def _with_uid(meta: ObjectMeta, name: str) -> ObjectMeta:
    """Add a uid that stays the same over restarts of the server."""
    return evolve(meta, uid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.rollyard.dev")), resource_version="1")
