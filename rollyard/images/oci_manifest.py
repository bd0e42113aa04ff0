"""Manifests, indexes and configurations of OCI and Docker images. Pure."""

from __future__ import annotations

import json
import platform
import posixpath
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rollyard.images.base import ImageConfig
from rollyard.images.cpu_level import cpu_level

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
_MOST_INDEXES = 20


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


def platform_key() -> str:
    """Return a word for what an image must fit on this machine. Machines with the same word choose the same manifest."""
    return machine() if cpu_level() == 1 else f"{machine()}v{cpu_level()}"


def parse_json(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        raise BadManifest("its manifest is no JSON") from None
    if not isinstance(parsed, dict):
        raise BadManifest("its manifest is no JSON object")
    return parsed


def is_index(manifest: Mapping[str, Any]) -> bool:
    return "manifests" in manifest or (manifest.get("mediaType") in INDEX_TYPES and "layers" not in manifest)


class ManifestSearch:
    """Search for this machine's manifest in an index, and in the indexes that it names. Use once."""

    def __init__(self) -> None:
        self._waiting: list[Descriptor] = []
        self._offers: set[str] = set()
        self._indexes = 0

    def next(self, data: bytes) -> Descriptor | None:
        """Return what to read after an index or a manifest; None if it is the manifest. Raises BadManifest."""
        parsed = parse_json(data)
        return self.choose(objects(parsed, "manifests")) if is_index(parsed) else None

    def choose(self, listed: Sequence[Mapping[str, Any]]) -> Descriptor:
        """Return what to read of an index: the manifest for the best CPU that this machine has; else an index without a
        platform; else the only manifest without one. Raises BadManifest."""
        self._offers |= {_offer(_platform(one)) for one in listed}
        found = sorted((one for one in listed if _fitness(_platform(one))), key=lambda one: -_fitness(_platform(one)))
        if not found:
            unnamed = [one for one in listed if "platform" not in one]
            indexes = [one for one in unnamed if one.get("mediaType") in INDEX_TYPES]
            found = indexes or (unnamed if len(unnamed) == 1 else [])
        self._waiting = [*(descriptor(one) for one in found), *self._waiting]
        self._indexes += 1
        if not self._waiting or self._indexes > _MOST_INDEXES:
            raise BadManifest(_built_for(self._offers))
        return self._waiting.pop(0)


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
    """Raises BadManifest, also for an image of another machine."""
    named = _platform({"platform": {"os": "linux", **{key: value for key, value in config.items() if value}}})
    if named.architecture and not _fitness(named):
        raise BadManifest(_built_for({_offer(named)}))
    inner = config.get("config") or {}
    if not isinstance(inner, dict):
        raise BadManifest("its configuration cannot be read")
    env = dict(entry.split("=", 1) for entry in strings(inner, "Env") if "=" in entry)
    made = ImageConfig(
        env=env,
        workdir=posixpath.normpath(posixpath.join("/", str(inner["WorkingDir"]))) if inner.get("WorkingDir") else None,
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


@dataclass(frozen=True)
class _Platform:
    os: str
    architecture: str
    variant: str


def _platform(one: Mapping[str, Any]) -> _Platform:
    named = one.get("platform")
    named = named if isinstance(named, dict) else {}
    return _Platform(*(str(named.get(key, "")) for key in ("os", "architecture", "variant")))


def _fitness(named: _Platform) -> int:
    """Return 0 if this machine cannot run programs of a platform; of two others, the greater is better."""
    if (named.os, named.architecture) != ("linux", machine()):
        return 0
    level = re.fullmatch(r"v([1-9])", named.variant or "v1")
    if named.architecture == "amd64" and level:
        return 1 + int(level[1]) if int(level[1]) <= cpu_level() else 0
    return 2 if named.variant in ("", "v8") else 1  # v8 is arm64's first; of others nothing is known


def _offer(named: _Platform) -> str:
    return "/".join(filter(None, (named.os, named.architecture, named.variant)))


def _built_for(offers: Set[str]) -> str:
    known, own = sorted(offers - {"unknown/unknown", ""}), f"linux/{machine()}"
    if any(one.startswith(f"{own}/") for one in known):
        own = f"{own}/v{cpu_level()}"
    return f"it is built for {', '.join(known) or 'no machine'}, not for {own}"


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
