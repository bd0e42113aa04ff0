"""`rollyard tasks check`: which tasks of a set are sound."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.progress import counted_progress
from rollyard.cli.rollout_requests import given_image, read_tasks
from rollyard.cli.text_files import read_text
from rollyard.cli.written_file import write_lines
from rollyard.client.async_client import AsyncClient
from rollyard.client.repeated_runs import MAX_NAME_CHARS, RepeatedRuns, Variant
from rollyard.client.task_report import CheckedTask, TaskReport
from rollyard.client.task_verdict import NOTHING, SOLVE, CheckedRun, TaskVerdict, checked_run, judge
from rollyard.kinds.rollout import CHECK, ID_PATTERN, Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task


@click.command()
@click.argument("file")
@click.option("--pool", required=True, help="RolloutPool to run in")
@click.option("--runs", default=3, type=click.IntRange(1, 100), help="runs of each solution  [default: 3]")
@click.option(
    "--wrong",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="bash script with a wrong solution, which must not get the full reward; repeat for several",
)
@click.option("--image", help="sandbox image of the tasks that name none  [default: the image of the pool]")
@click.option(
    "--name", help="name of the check. A name runs each task once; a new name runs all again  [default: check-POOL]"
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="report, a file of JSON lines")
@with_client
async def check(
    client: AsyncClient,
    namespace: str,
    file: str,
    pool: str,
    runs: int,
    wrong: tuple[Path, ...],
    image: str | None,
    name: str | None,
    output: Path | None,
) -> None:
    """Say which tasks of a file of JSON lines are sound, and what is wrong with the others.

    The reference solution of each task, nothing at all, and given wrong solutions are scored. No model is called. Exit code
    1 if a task is not sound. A check that was interrupted goes on when the same command is given again.
    """
    name = _name(name or f"check-{pool}")
    numbered = read_tasks(file, name, {"pool": pool}, None if image is None else given_image(image, os.getcwd()))
    lines: dict[str, list[int]] = {}
    for one in numbered:
        lines.setdefault(one.request.task.digest, []).append(one.line)
    tasks = list({one.request.task.digest: one.request.task for one in numbered}.values())
    variants = [Variant(word, {"mode": CHECK, "agent": {"type": word}}) for word in (SOLVE, NOTHING)]
    variants += [_wrong_solution(path) for path in wrong]
    whole = RepeatedRuns(name, pool, tasks, variants, runs)
    found = await client.get(RolloutPool.key_of(namespace, pool))
    assert isinstance(found, RolloutPool)
    limits = {stage: float(getattr(found.spec.stages, stage.lower()).timeout_seconds) for stage in Stage}
    click.echo(await _opening(client, namespace, whole), err=True)

    checked: dict[str, CheckedTask] = {}
    found_so_far = ""
    ended: dict[str, list[CheckedRun]] = {task.digest: [] for task in tasks}
    shown = {variant.name: str(path) for variant, path in zip(variants[2:], wrong, strict=True)}
    order = [variant.name for variant in variants]
    with counted_progress(len(whole)) as progress:
        async for run, trajectory in whole.ended(client, namespace):
            of_task = ended[run.task.digest]
            of_task.append(checked_run(run.variant, trajectory))
            if len(of_task) == len(variants) * runs:
                of_task.sort(key=lambda one: (order.index(one.variant), one.rollout))
                named = [one.model_copy(update={"variant": shown.get(one.variant, one.variant)}) for one in of_task]
                checked[run.task.digest] = _checked(run.task, lines[run.task.digest], pool, named, limits)
                found_so_far = _counted(checked.values())
            progress(found_so_far)
    report = TaskReport([checked[digest] for digest in lines])
    write_lines(output, (task.model_dump_json() for task in report.tasks))
    click.echo(printable("\n".join(_table(report))))
    if any(task.verdict is not TaskVerdict.SOUND for task in report.tasks):
        sys.exit(1)


def _name(name: str) -> str:
    if not re.fullmatch(ID_PATTERN, name) or len(name) > MAX_NAME_CHARS:
        raise click.UsageError(
            f"--name {name!r}: write at most {MAX_NAME_CHARS} letters, digits and . _ : - and start with a letter or a digit"
        )
    return name


def _wrong_solution(path: Path) -> Variant:
    script = read_text(str(path))
    digest = hashlib.sha256(script.encode()).hexdigest()[:8]
    return Variant(f"wrong-{digest}", {"mode": CHECK, "agent": {"type": "script", "script": script}})


async def _opening(client: AsyncClient, namespace: str, whole: RepeatedRuns) -> str:
    there = await whole.there(client, namespace)
    text = f"check {whole.name}: {len(whole.tasks)} tasks, {len(whole)} rollouts"
    if there:
        text += (
            f". It goes on from an earlier one: {there} rollouts are there, and do not run again; a new --name runs "
            "everything"
        )
    return text


def _checked(
    task: Task, lines: list[int], pool: str, runs: list[CheckedRun], limits: dict[Stage, float]
) -> CheckedTask:
    verdict, why = judge(runs, limits)
    return CheckedTask(
        task=task.digest, lines=lines, kind=task.kind, image=task.image, pool=pool, verdict=verdict, why=why, runs=runs
    )


def _table(report: TaskReport) -> list[str]:
    """Return a line for each task that is not sound, and the number of tasks for each verdict."""
    rows = [["LINE", "TASK", "KIND", "VERDICT", "WHY"]]
    for task in report.tasks:
        if task.verdict is not TaskVerdict.SOUND:
            lines = ",".join(map(str, task.lines))
            rows.append([lines, task.task, task.kind, task.verdict.value, "; ".join(task.why)])
    last = [f"{len(report.tasks)} tasks: {_counted(report.tasks)}"]
    if number := sum(task.without_controls for task in report.tasks):
        last.append(f"{number} without control tests: forged results of their tests would not show")
    return [*(align(rows) if len(rows) > 1 else []), *last]


def _counted(tasks: Iterable[CheckedTask]) -> str:
    counts = Counter(task.verdict for task in tasks)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in TaskVerdict if counts[verdict])
