"""Real instances: neighbouring releases of packages as rows of the families, imported, and judged as by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from rollyard.cli.main import cli
from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.task import Task
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.swe_instances.instance import Instance, Pair, instance
from tests.support.swe_instances.pairs import PAIRS, SHORT
from tests.support.swe_instances.works import attacked_evaluator, edited_tests, wrong
from tests.tasks.swe.conftest import Site

LIMITS = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=512 << 20, processes=256)


def imported(instances: Sequence[Instance], folder: Path) -> list[Task]:
    """Return the tasks that the command makes of the rows."""
    rows, out = folder / "rows.jsonl", folder / "tasks.jsonl"
    rows.write_text("".join(f"{json.dumps(one.row)}\n" for one in instances))
    done = CliRunner().invoke(cli, ["tasks", "import", "swe", str(rows), "-o", str(out)])
    assert done.exit_code == 0, done.output
    tasks = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    assert [task.metadata["family"] for task in tasks] == [one.pair.family for one in instances], done.output
    return tasks


@contextlib.asynccontextmanager
async def site_of(one: Instance, name: str = "bubblewrap") -> AsyncIterator[Site]:
    try:
        runtime = find_runtime(cast(RuntimeName, name))
    except SandboxStartFailed as error:
        pytest.skip(f"{name} does not start here: {error}")
    async with SandboxFactory(runtime) as factory:
        site = Site(factory, one.root, LIMITS)
        yield site
        await site.handler.close()


async def reference_reward(site: Site, task: Task) -> float:
    async with site.fresh() as sandbox:
        await site.handler.init(task, sandbox)
        await site.handler.solve(task, sandbox)
        artifact = await site.handler.collect(task, sandbox)
    return (await site.scored(task, artifact)).reward


async def test_a_release_gets_the_reward_and_an_attack_gets_none(tmp_path: Path) -> None:
    one = await asyncio.to_thread(instance, SHORT)
    (task,) = imported([one], tmp_path)
    async with site_of(one) as site:
        assert await reference_reward(site, task) == 1.0
        assert (await site.score(task, edited_tests(one) + attacked_evaluator(one))).reward == 0.0


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
async def test_every_verdict_is_that_of_the_tests_run_by_hand(pair: Pair, tmp_path: Path) -> None:
    one = await asyncio.to_thread(instance, pair)
    (task,) = imported([one], tmp_path)
    by_hand = [one.passed(one.by_hand(one.script(work))) for work in (one.made.apply_patch, "", wrong(one))]
    assert by_hand == [True, False, False]
    async with site_of(one) as site:
        found = {"right": await reference_reward(site, task)}
        for name, work in (("right by git", one.made.apply_patch), ("nothing", "true"), ("wrong", wrong(one))):
            found[name] = (await site.score(task, work)).reward
        for make in (edited_tests, attacked_evaluator):
            found[make.__name__] = (await site.score(task, make(one))).reward
    assert found == {
        "right": 1.0, "right by git": 1.0, "nothing": 0.0, "wrong": 0.0, "edited_tests": 0.0, "attacked_evaluator": 0.0,
    }  # fmt: skip
