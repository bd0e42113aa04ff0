"""The request of a build, and the parts that a build works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.image_builds.dockerfile import Dockerfile
from rollyard.image_builds.file_patterns import IgnoreRules
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.run_step import Network
from rollyard.images.cache import ImageCache
from rollyard.sandbox.base import Runtime


@dataclass(frozen=True)
class BuildRequest:
    context: Path
    file: Dockerfile
    arguments: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    """Name or number of the stage to build; None: the last."""
    network: Network = "host"
    """Network of RUN."""
    use_cache: bool = True
    ignored: IgnoreRules = field(default_factory=IgnoreRules)
    folders: Sequence[Path] = ()
    """Folders that FROM may name, with those below them. It may always name folders in the context."""


@dataclass(frozen=True)
class BuildParts:
    store: LayerStore
    images: ImageCache
    """Where the images that FROM names come from."""
    runtime: Callable[[], Runtime]
    own_python: Callable[[], Path]
    overlay: Callable[[], str | None]
    """Returns fuse-overlayfs, or None for the kernel's overlay. `runtime`, `own_python` and `overlay` are called by the first
    RUN that is not in the cache. They block."""
    output: int
    """Descriptor that gets the output of RUN."""
    say: Callable[[str], None]
    """Gets a line for each step, and for each thing that has no effect."""
