"""A handler of the kind `harbor`, and sandboxes of a small image in which it works as under a node agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.rollout_pool import Stages
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.node.sandbox_specs import SandboxSpecs, sandbox_specs
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.harbor.handler import HarborHandler
from rollyard.tasks.harbor.task_folder import read_folder
from rollyard.trajectory import Artifact, Turn
from tests.support.harbor_folders import BUNDLED, HarborFolder, one_step
from tests.support.small_roots import busybox_root, python_root

SAID = Turn(segment=0, prompt_length=0, response_length=0, text="It is done.", finish_reason="stop")
POOL = SandboxTemplate(cpus=1, memory="1G", disk="64M", allowed_hosts=["*.example.org"])


class HarborSite:
    """A handler, and sandboxes of one image."""

    def __init__(self, factory: SandboxFactory, root: Path, verifier_root: Path) -> None:
        """`verifier_root`: image of verifiers that have one of their own."""
        self.verifier_root = verifier_root
        self.handler = GuardedHandler("harbor", HarborHandler())
        self._factory = factory
        self._root = root

    def task(self, folder: HarborFolder, **fields: Any) -> Task:
        """Return the task of a folder, as the import makes it."""
        with tempfile.TemporaryDirectory(prefix="rollyard-test-") as place:
            read = read_folder(folder.write(Path(place)))
            own = str(self.verifier_root) if read.verifier_image is not None else None
            made = read.task(str(self._root), fields.pop("variables", {}), own)
            if read.config.steps:
                made["verifier"] = "shared"
        return Task.model_validate({**made, **fields})

    def specs(self, task: Task) -> SandboxSpecs:
        return sandbox_specs(task, self.handler, POOL, Stages(), None)

    def of(self, root: Path) -> HarborSite:
        """Return the same with another image of agents."""
        return HarborSite(self._factory, root, self.verifier_root)

    @contextlib.asynccontextmanager
    async def begun(self, task: Task) -> AsyncIterator[Sandbox]:
        """Give a sandbox after INIT."""
        async with await self._factory.start(self.specs(task).run) as sandbox:
            await self.handler.init(task, sandbox)
            yield sandbox

    async def score(
        self, folder: HarborFolder, work: str | Sequence[str] | None, seconds: float = 60, **fields: Any
    ) -> Score:
        """Score an agent that runs one command, or one in each step; None: the reference solution."""
        task = self.task(folder, **fields)
        async with self.begun(task) as sandbox:
            if work is None:
                await self.handler.solve(task, sandbox)
            elif (environment := await self.handler.environment(task, sandbox)) is not None:
                for one in [work] if isinstance(work, str) else work:
                    await sandbox.bash(one, 60)
                    if (reply := await environment.reply(SAID)) is None or reply.done:
                        break
            else:
                assert isinstance(work, str)
                await sandbox.bash(work, min(60, self.specs(task).run_seconds))
            saved = self.handler.eval_from_snapshot(task)
            with await sandbox.snapshot() if saved else contextlib.nullcontext() as snapshot:
                artifact = await self.handler.collect(task, sandbox)
                await sandbox.close()
                return await self.scored(task, artifact, snapshot, seconds)

    async def scored(self, task: Task, artifact: Artifact, snapshot: SandboxSnapshot | None, seconds: float) -> Score:
        spec, rules = self.specs(task).eval, self.handler.restore_rules(task)

        @contextlib.asynccontextmanager
        async def another(*, files: bool = True) -> AsyncIterator[Sandbox]:
            async with await self._factory.start(spec) as sandbox:
                if files and snapshot is not None:
                    snapshot.file.seek(0)
                    await sandbox.restore(snapshot.file, rules)
                yield sandbox

        async with another() as sandbox:
            return await self.handler.evaluate(task, Evaluation(artifact, [], seconds, sandbox, another))


def add_prefix(root: Path) -> None:
    """Install Python in /opt/py too, by hard links."""
    (root / "opt/py/bin").mkdir(parents=True)
    os.link(root / "usr/bin/python3", root / "opt/py/bin/python3")
    library = next(one for one in (root / "usr/lib").glob("python3.*") if (one / "os.py").exists())
    shutil.copytree(library, root / "opt/py/lib" / library.name, symlinks=True, copy_function=os.link)
    (root / "opt/py/lib" / library.name / "dist-packages/pytest").mkdir(parents=True)
    (root / "opt/py/lib" / library.name / "dist-packages/pytest/__init__.py").write_text("")


@pytest.fixture(scope="session")
def harbor_roots() -> Iterator[tuple[Path, Path]]:
    """The image of agents, and that of verifiers that have one of their own."""
    folder, account = Path(tempfile.mkdtemp(prefix="rollyard-test-")), sandbox_account()
    folder.chmod(0o755)
    roots = python_root(folder / "root"), busybox_root(folder / "verifier")
    add_prefix(roots[0])
    one_step(test=BUNDLED).write(roots[1])
    subprocess.run(["chown", "-hR", f"{account.uid}:{account.gid}", *roots], check=True)
    yield roots
    remove_folder(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(request: pytest.FixtureRequest, harbor_roots: tuple[Path, Path]) -> AsyncIterator[HarborSite]:
    """On bubblewrap, or on the runtime that the test names as the fixture's parameter."""
    name = getattr(request, "param", "bubblewrap")
    try:
        runtime = find_runtime(cast(RuntimeName, name))
    except SandboxStartFailed as error:
        pytest.skip(f"{name} does not start here: {error}")
    async with SandboxFactory(runtime) as factory:
        yield HarborSite(factory, *harbor_roots)
