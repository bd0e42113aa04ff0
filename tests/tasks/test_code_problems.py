"""A hundred problems in five languages: each solution gets what it deserves, and the note says why."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation
from rollyard.tasks.code.handler import CodeHandler
from tests.support.code_problems.problems import LANGUAGES
from tests.support.code_problems.solutions import FILES, Solution, solutions
from tests.support.swe_instances.base_roots import base_root
from tests.support.swe_instances.releases import CACHED

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=128 << 20, processes=128)
PATHS = {"PATH": "/usr/bin:/bin:/usr/lib/go/bin"}
SECONDS = 300.0
AT_ONCE = 2
"""Solutions at the same time, as many as the suite has cores: one sandbox starts while the other computes."""
NEEDS = {"cpp": "g++", "java": "javac", "javascript": "node"}
SHORT = {
    "cpp": ("right", "wrong"),
    "javascript": ("right", "recursion without end", "works in a thread with a large stack"),
}


def image_of(language: str) -> Path | None:
    """Return the image; None for the default one, which has this machine's programs."""
    if language == "go":
        return build_once(CACHED.with_name("code-go"), _own_copy) / "root"
    if language in NEEDS and shutil.which(NEEDS[language]) is None:
        pytest.skip(f"needs {NEEDS[language]}")
    return None


def _own_copy(folder: Path) -> None:
    """Copy the image for the account of sandboxes, which is to write in its folders."""
    root, account = folder / "root", sandbox_account()
    shutil.copytree(base_root("go"), root, symlinks=True)
    for path in (root, *root.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def task(solution: Solution) -> Task:
    fields = {
        "problem": solution.problem.name, "solution": f"/workspace/{FILES[solution.language]}", "language": solution.language,
        "cases": solution.problem.cases(), "case_seconds": 2.0 if solution.language == "java" else 1.0, "case_memory": "200M",
    }  # fmt: skip
    return Task.model_validate({"kind": "code", **fields, **solution.problem.fields})


async def misjudged(
    factory: SandboxFactory, handler: CodeHandler, solution: Solution, image: Path | None
) -> str | None:
    """Return the reward and the notes, if they are not what the solution deserves."""
    spec = SandboxSpec(None if image is None else parse_image(str(image)), LIMITS, env=PATHS)

    @asynccontextmanager
    async def another() -> AsyncIterator[Sandbox]:
        async with await factory.start(SandboxSpec(None, LIMITS)) as sandbox:
            yield sandbox

    async with await factory.start(spec) as sandbox:
        evaluation = Evaluation({"solution": solution.text()}, [], SECONDS, sandbox, another)
        score = await handler.evaluate(task(solution), evaluation)
    deserved = (
        score.reward == 1.0 if solution.why is None else score.reward == 0.0 and re.search(solution.why, score.notes[0])
    )
    return None if deserved else f"{solution}: {score.reward}, {score.metrics}, {score.notes}"


@pytest.mark.parametrize("language", SHORT)
async def test_a_few_solutions_get_what_they_deserve(language: str) -> None:
    await judge("bubblewrap", language, [s for s in solutions(language) if s.twist.name in SHORT[language]][:3])


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"])
async def test_every_solution_gets_what_it_deserves(runtime: RuntimeName, language: str) -> None:
    await judge(runtime, language, list(solutions(language)))


async def judge(runtime: RuntimeName, language: str, chosen: list[Solution]) -> None:
    image, handler, room = await asyncio.to_thread(image_of, language), CodeHandler(), asyncio.Semaphore(AT_ONCE)
    async with SandboxFactory(await asyncio.to_thread(find_runtime, runtime)) as factory:

        async def why(solution: Solution) -> str | None:
            async with room:
                return await misjudged(factory, handler, solution, image)

        found = await asyncio.gather(*map(why, chosen))
    await handler.close()
    assert [one for one in found if one is not None] == []
