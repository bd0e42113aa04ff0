"""Real instances: neighbouring releases of packages as rows of the families, imported, and judged as by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollyard.cli.main import cli
from rollyard.kinds.task import Task
from rollyard.sandbox.base import Limits
from tests.support.swe_instances.instance import Instance, Pair, instance
from tests.support.swe_instances.pairs import PAIRS, SHORT
from tests.support.swe_instances.works import attacked_evaluator, edited_tests, forged_reports, wrong
from tests.tasks.swe.conftest import Site, site_of

LIMITS = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=512 << 20, processes=256)
SECONDS = 1800.0
"""Time of an evaluation: six of them share the cores."""


def imported(instances: Sequence[Instance], folder: Path) -> list[Task]:
    """Return the tasks that the command makes of the rows."""
    rows, out = folder / "rows.jsonl", folder / "tasks.jsonl"
    rows.write_text("".join(f"{json.dumps(one.row)}\n" for one in instances))
    done = CliRunner().invoke(cli, ["tasks", "import", "swe", str(rows), "-o", str(out)])
    assert done.exit_code == 0, done.output
    tasks = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    assert [task.metadata["family"] for task in tasks] == [one.pair.family for one in instances], done.output
    return tasks


async def reference_reward(site: Site, task: Task) -> float:
    async with site.fresh() as sandbox:
        await site.handler.init(task, sandbox)
        await site.handler.solve(task, sandbox)
        artifact = await site.handler.collect(task, sandbox)
    return (await site.scored(task, artifact, seconds=SECONDS)).reward


async def test_a_release_gets_the_reward_and_an_attack_gets_none(tmp_path: Path) -> None:
    one = await asyncio.to_thread(instance, SHORT)
    (task,) = imported([one], tmp_path)
    async with site_of("bubblewrap", one.root, LIMITS) as site:
        assert await reference_reward(site, task) == 1.0
        assert (await site.score(task, edited_tests(one) + attacked_evaluator(one))).reward == 0.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("runtime", "pair"),
    [(runtime, pair) for runtime in ("bubblewrap", "apptainer") for pair in PAIRS],
    ids=lambda value: value.id if isinstance(value, Pair) else value,
)
async def test_every_verdict_is_that_of_the_tests_run_by_hand(runtime: str, pair: Pair, tmp_path: Path) -> None:
    one = await asyncio.to_thread(instance, pair)
    (task,) = imported([one], tmp_path)
    works = {
        "right by git": one.made.apply_patch, "nothing": "true", "wrong": wrong(one), "edited tests": edited_tests(one),
        "attacked evaluator": attacked_evaluator(one),
    }  # fmt: skip
    if pair.language == "python":
        works["forged reports"] = forged_reports(one)
    by_hand = [asyncio.to_thread(one.by_hand, one.script(works[name])) for name in ("right by git", "nothing", "wrong")]
    async with site_of(runtime, one.root, LIMITS) as site:
        scores = [site.score(task, work, SECONDS) for work in works.values()]
        right, *found = await asyncio.gather(reference_reward(site, task), *scores)
    assert [one.passed(output) for output in await asyncio.gather(*by_hand)] == [True, False, False]
    rewards = {name: score.reward for name, score in zip(works, found, strict=True)}
    assert (right, rewards) == (1.0, dict.fromkeys(works, 0.0) | {"right by git": 1.0})
    if pair.language == "python":  # a test that cannot be collected cannot be reported either
        assert found[-1].metrics.get("forged") or found[-1].metrics["passed"] < 1.0, found[-1]
