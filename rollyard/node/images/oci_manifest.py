"""Manifests, indexes and configurations of OCI and Docker images. Pure."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.node.images.base import ImageConfig

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_LAYERS = 1000


class BadManifest(Exception):
    """A manifest that cannot be used. `str()` is the end of a sentence about the image."""


@dataclass(frozen=True)
class Descriptor:
    digest: str
    size: int


@dataclass(frozen=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


def machine() -> str:
    """Return this machine's architecture as images name it: amd64, arm64, …"""
    return _MACHINES.get(platform.machine(), platform.machine())


def parse_json(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        raise BadManifest("its manifest is no JSON") from None
    if not isinstance(parsed, dict):
        raise BadManifest("its manifest is no JSON object")
    return parsed


def is_index(manifest: Mapping[str, Any]) -> bool:
    return manifest.get("mediaType") in INDEX_TYPES or "manifests" in manifest


def choose_platform(index: Mapping[str, Any], architecture: str) -> Descriptor:
    """Return the manifest of an index for Linux on this architecture. An index with one manifest that names no platform
    gives that one. Raises BadManifest."""
    found = [one for one in objects(index, "manifests") if _platform(one) == ("linux", architecture)]
    unnamed = [one for one in objects(index, "manifests") if "platform" not in one]
    if not found and len(unnamed) == 1:
        found = unnamed
    if not found:
        offers = sorted({"/".join(_platform(one)) for one in objects(index, "manifests")} - {"unknown/unknown", "/"})
        raise BadManifest(f"it is built for {', '.join(offers) or 'no machine'}, not for linux/{architecture}")
    return descriptor(found[0])


def read_manifest(manifest: Mapping[str, Any]) -> Manifest:
    """Raises BadManifest."""
    if manifest.get("schemaVersion") == 1:
        raise BadManifest(
            "its manifest has Docker's schema 1, which is obsolete: push the image again with a newer tool"
        )
    layers = objects(manifest, "layers")
    if len(layers) > _MOST_LAYERS:
        raise BadManifest(f"it has more than {_MOST_LAYERS} layers")
    return Manifest(descriptor(manifest.get("config")), tuple(descriptor(layer) for layer in layers))


def read_config(config: Mapping[str, Any]) -> ImageConfig:
    """Raises BadManifest."""
    inner = config.get("config") or {}
    if not isinstance(inner, dict):
        raise BadManifest("its configuration cannot be read")
    env = dict(entry.split("=", 1) for entry in strings(inner, "Env") if "=" in entry)
    made = ImageConfig(
        env=env,
        workdir=str(inner["WorkingDir"]) if inner.get("WorkingDir") else None,
        user=str(inner["User"]) if inner.get("User") else None,
        entrypoint=tuple(strings(inner, "Entrypoint")),
        cmd=tuple(strings(inner, "Cmd")),
    )
    if made.fault is not None:
        raise BadManifest(f"{made.fault}: build the image again")
    return made


def objects(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Raises BadManifest."""
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadManifest(f"its manifest has no list of {key}")
    return found


def strings(data: Mapping[str, Any], key: str) -> list[str]:
    """Raises BadManifest."""
    found = data.get(key) or []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadManifest("its configuration cannot be read")
    return found


def _platform(one: Mapping[str, Any]) -> tuple[str, str]:
    named = one.get("platform")
    named = named if isinstance(named, dict) else {}
    return str(named.get("os", "")), str(named.get("architecture", ""))


def descriptor(data: Any) -> Descriptor:
    """Raises BadManifest."""
    if not isinstance(data, dict):
        raise BadManifest("its manifest is incomplete")
    digest, size = data.get("digest"), data.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadManifest("its manifest names a digest that is not sha256")
    if type(size) is not int or size < 0:
        raise BadManifest("its manifest names a wrong size")
    return Descriptor(digest, size)
