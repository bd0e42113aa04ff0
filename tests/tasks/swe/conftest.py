"""Sandboxes of an image with a repository."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.swe.handler import SweHandler
from rollyard.trajectory import Artifact, Turn
from tests.support.swe_repository import repository_root

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=128 << 20, processes=64)


class Site:
    """A handler, and fresh sandboxes of one image."""

    def __init__(self, factory: SandboxFactory, root: Path, limits: Limits = LIMITS) -> None:
        self.handler = SweHandler()
        self._factory = factory
        self.started = 0
        """Number of sandboxes so far."""
        self.open = 0
        """Number of sandboxes now."""
        self._spec = SandboxSpec(parse_image(str(root)), limits)

    @contextlib.asynccontextmanager
    async def fresh(self, *, files: bool = True) -> AsyncIterator[Sandbox]:
        self.started += 1
        async with await self._factory.start(self._spec) as sandbox:
            self.open += 1
            try:
                yield sandbox
            finally:
                self.open -= 1

    @contextlib.asynccontextmanager
    async def with_idle_cores(self, idle: bool) -> AsyncIterator[None]:
        """Let control tests run at the same time as the tests, or after them, inside the block."""
        before, self.handler = self.handler, SweHandler(lambda: idle)
        try:
            yield
        finally:
            await self.handler.close()
            self.handler = before

    async def worked(self, task: Task, work: str) -> Artifact:
        """Return the artifact of an agent that runs one command."""
        async with self.fresh() as sandbox:
            await self.handler.init(task, sandbox)
            await sandbox.bash(f"cd {task.fields.get('repository', '/testbed')}\n{work}", 60)
            return await self.handler.collect(task, sandbox)

    async def scored(
        self, task: Task, artifact: Artifact, turns: list[Turn] | None = None, seconds: float = 100
    ) -> Score:
        async with self.fresh() as sandbox:
            evaluation = Evaluation(artifact, turns or [], seconds, sandbox, self.fresh)
            return await self.handler.evaluate(task, evaluation)

    async def score(self, task: Task, work: str, seconds: float = 100) -> Score:
        return await self.scored(task, await self.worked(task, work), seconds=seconds)


@contextlib.asynccontextmanager
async def site_of(name: str, root: Path, limits: Limits = LIMITS) -> AsyncIterator[Site]:
    """`name`: the runtime."""
    try:
        runtime = await asyncio.to_thread(find_runtime, cast(RuntimeName, name))
    except SandboxStartFailed as error:
        pytest.skip(f"{name} does not start here: {error}")
    async with SandboxFactory(runtime) as factory:
        made = Site(factory, root, limits)
        yield made
        await made.handler.close()


@pytest.fixture(scope="session")
def swe_root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    yield repository_root(folder / "root")
    remove_folder(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(request: pytest.FixtureRequest, swe_root: Path) -> AsyncIterator[Site]:
    """On bubblewrap, or on the runtime that the test names as the fixture's parameter."""
    async with site_of(getattr(request, "param", "bubblewrap"), swe_root) as made:
        yield made
