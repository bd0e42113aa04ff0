"""Builds of images, with a cache of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.image_builds.run_build import BuildOptions, run_build
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime
from tests.support.small_roots import busybox_root


@dataclass
class Builder:
    """Builds Dockerfiles. `context` is a folder with a root file system in `base`."""

    folder: Path
    context: Path
    cache: Path
    said: list[str] = field(default_factory=list)
    """Lines of the last build."""
    count: int = 0

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.context / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    async def build(self, dockerfile: str, **options: Any) -> str:
        """Return the image's digest."""
        (self.context / "Dockerfile").write_text(dockerfile)
        self.said.clear()
        with open(self.folder / "output", "wb") as output:
            options.setdefault("folders", [self.folder / "base"])
            chosen = BuildOptions(self.context, cache=self.cache, **options)
            return await run_build(chosen, output.fileno(), self.said.append)

    async def root(self, dockerfile: str, **options: Any) -> Path:
        """Return the folder of the image."""
        self.count += 1
        root = self.folder / f"image-{self.count}"
        await self.build(dockerfile, outputs=[str(root)], **options)
        return root

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    @property
    def done(self) -> list[str]:
        """The steps of the last build that were not in the cache."""
        after = [*self.said[1:], ""]
        steps = [one for one, then in zip(self.said, after, strict=True) if "from the build cache" not in then]
        return [one.partition("] ")[2] for one in steps if one.startswith("[")]


@pytest.fixture
def builder(open_folder: Path) -> Builder:
    cache, own = open_folder / "cache", own_python(node_cache())
    cache.mkdir(mode=0o755)
    for shared in (own, node_cache() / "apptainer"):  # made once for all tests
        (cache / shared.name).symlink_to(shared)
    (open_folder / "context").mkdir()
    busybox_root(open_folder / "base")
    return Builder(open_folder, open_folder / "context", cache)


@pytest.fixture(params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest) -> str:
    try:
        find_runtime(request.param)
    except SandboxStartFailed as error:
        pytest.skip(f"{request.param} does not start here: {error}")
    return str(request.param)


@pytest.fixture
def left_over(builder: Builder) -> Callable[[], list[str]]:
    """Returns what builds have left in their work folder."""
    return lambda: os.listdir(builder.cache / "image-builds" / "work")
