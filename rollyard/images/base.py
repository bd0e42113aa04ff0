"""Configuration of an image, and limits and errors of filling the cache with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rollyard.core.errors import ImageUnavailable

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_VARIABLE, _MOST_VARIABLES = 120 << 10, 1 << 20
"""Greatest number of bytes of one variable and of all. Linux starts no program with a longer one, or with twice as many."""


@dataclass(frozen=True)
class ImageConfig:
    """The part of an OCI image's configuration that a sandbox needs, as the image has it."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @property
    def fault(self) -> str | None:
        """Why no program can be started with this configuration; None if one can. `str()` is the end of a sentence."""
        texts = [*self.env, *self.env.values(), self.workdir or "", self.user or "", *self.entrypoint, *self.cmd]
        if any("\0" in text or _SURROGATE.search(text) for text in texts):
            return "its configuration has text that no program can be given, with a zero or half a character"
        if "" in self.env:
            return "its configuration has a variable without a name"
        sizes = [len(f"{name}={value}".encode()) for name, value in self.env.items()]
        if sum(sizes) > _MOST_VARIABLES or max(sizes, default=0) > _MOST_VARIABLE:
            return f"its variables have more than {_MOST_VARIABLES >> 10} KiB, or one has more than {_MOST_VARIABLE >> 10} KiB"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "entrypoint": tuple(data["entrypoint"]), "cmd": tuple(data["cmd"])})


@dataclass(frozen=True)
class FillRoom:
    """Limits of one filling of the cache."""

    limit_bytes: int
    """Bytes that the root may take on disk."""
    lock_fd: int
    """Descriptor of the lock of this image. A child process that writes into the cache inherits it, so that no other
    process fills the same folder while the child lives."""
    layer_fds: tuple[int, ...] = ()
    """Descriptors of the locks of the layers that are filled."""


def too_big(image: str, limit_bytes: int) -> ImageUnavailable:
    return ImageUnavailable(
        image,
        f"it needs more than the {limit_bytes} bytes of the node's cache: raise `sandbox.images.cacheSize`",
        permanent=True,
    )


class DiskFull(Exception):
    """The disk of the cache has no room. The cache makes room and tries once more."""

    def __init__(self, image: str, folder: Path) -> None:
        super().__init__(f"no room for {image} in {folder}")
