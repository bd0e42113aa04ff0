"""Real sandboxes: with bubblewrap always, with Apptainer where it is installed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

SMALL = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)


@pytest.fixture(scope="module", params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    try:
        return find_runtime(cast(RuntimeName, request.param))
    except SandboxStartFailed as error:
        if request.param == "bubblewrap":
            raise
        pytest.skip(f"Apptainer does not start here (deploy/apptainer/install.sh installs it): {error}")


@pytest.fixture
def bubblewrap() -> Runtime:
    return find_runtime("bubblewrap")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes(runtime: Runtime) -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(runtime) as factory:
        yield factory


@pytest.fixture(scope="module")
def spec() -> SandboxSpec:
    return SandboxSpec(None, SMALL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(sandboxes: SandboxFactory, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """One sandbox for all tests of a module that leave it usable."""
    async with await sandboxes.start(spec) as started:
        yield started


@pytest.fixture
def empty_image(open_folder: Path) -> Path:
    """A root file system with nothing in it: no shell, no C library, no Python."""
    image = open_folder / "empty"
    (image / "usr" / "bin").mkdir(parents=True)
    (image / "etc").mkdir()
    (image / "etc" / "mark").write_text("from the image\n")
    os.chmod(image, 0o755)
    return image
