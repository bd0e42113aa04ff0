"""The state of an image while it is built: its layers, and what it says beside its files. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rollyard.image_builds.tree_changes import Layer
from rollyard.images.base import ImageConfig
from rollyard.images.oci_manifest import machine

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True)
class ImageState:
    key: str
    """Digest of all that the files depend on."""
    layers: tuple[Layer, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None
    shell: tuple[str, ...] = DEFAULT_SHELL
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @classmethod
    def of_base(cls, key: str, layers: Sequence[Layer], config: ImageConfig) -> Self:
        return cls(
            key, tuple(layers), env=dict(config.env), workdir=config.workdir or "/", user=config.user,
            entrypoint=config.entrypoint, cmd=config.cmd,
        )  # fmt: skip

    def next_key(self, *parts: object) -> str:
        return digest([self.key, *parts])

    def with_layer(self, key: str, layer: Layer | None) -> Self:
        return replace(self, key=key, layers=(*self.layers, *([] if layer is None else [layer])))

    def sandbox_config(self) -> ImageConfig:
        workdir = None if self.workdir == "/" else self.workdir
        return ImageConfig(self.env, workdir, self.user, self.entrypoint, self.cmd)

    def config_json(self) -> bytes:
        """Return the configuration of an OCI image. It has no times, so the same build gives the same digest."""
        inner: dict[str, Any] = {
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "WorkingDir": self.workdir,
            "User": self.user or "",
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.cmd) or None,
            "Labels": self.labels,
        }
        whole = {
            "architecture": machine(),
            "os": "linux",
            "config": {name: value for name, value in inner.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
        }
        return json.dumps(whole, sort_keys=True).encode()

    def manifest_json(self) -> bytes:
        """Return the manifest of an OCI image. Its digest names the image."""
        config = self.config_json()
        whole = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": sha256(config), "size": len(config)},
            "layers": [
                {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size} for layer in self.layers
            ],
        }  # fmt: skip
        return json.dumps(whole, sort_keys=True).encode()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest(parts: Sequence[object]) -> str:
    """Return 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()
