"""`rollyard eval`: evaluations of a policy on a set of tasks, and their comparison."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from rollyard.cli.evaluation_page import comparison_page, evaluation_page
from rollyard.cli.evaluation_tables import comparison_lines, list_lines, task_lines, view_lines
from rollyard.cli.options import with_client
from rollyard.cli.printable import printable
from rollyard.cli.progress import counted_progress
from rollyard.cli.rollout_requests import given_image, read_tasks, sampling_of
from rollyard.cli.written_file import written_file
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.evaluation import EvaluationState, EvaluationView, tasks_digest
from rollyard.kinds.rollout import Sampling, Status
from rollyard.kinds.rollout_pool import POLICY_ROLE, RolloutPool
from rollyard.kinds.task import Task
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate

ON_THE_WAY = [status.value for status in Status if not status.terminal]
FORM = click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
SOLVED_AT = click.option("--solved-at", type=float, help="least reward of a solved task  [default: 1]")
BY = click.option("--by", help="also statistics by `kind`, or by this name of the tasks' metadata, such as difficulty")
HTML = click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="write one HTML file to send, without a script"
)
MAX_CHANGES = 20
"""Greatest number of changed tasks that a table shows of each sort."""


@click.group()
def eval_() -> None:
    """Evaluate a policy on a set of tasks, and compare evaluations."""


@eval_.command("run")
@click.option(
    "--dataset", "source", required=True, help="name of a dataset, or a file of JSON lines; - for standard input"
)
@click.option("--pool", required=True, help="RolloutPool to run in")
@click.option("--k", default=4, type=click.IntRange(1, 1024), help="rollouts of each task  [default: 4]")
@click.option(
    "--weights",
    metavar="V[=FOLDER][,…]",
    help="evaluate these weights versions one after the other: versions that the InferencePool has served, or new ones with "
    "their folder. The InferencePool serves the last one afterwards  [default: what it serves now]",
)
@click.option("--force", is_flag=True, help="with --weights: also while the InferencePool has other rollouts")
@click.option("--name", help="name of the evaluation; with --weights, -V is added  [default: POOL-DIGEST]")
@click.option("--temperature", type=float, help="sampling temperature; 0 is greedy  [default: 1]")
@click.option(
    "--sampling", multiple=True, metavar="NAME=VALUE", help="further sampling parameter, such as max_tokens=512"
)
@click.option("--image", help="sandbox image of the tasks that name none  [default: the image of the pool]")
@click.option(
    "--rerun-faulty", is_flag=True, help="if all rollouts have ended: repeat those that ended without counting"
)
@BY
@SOLVED_AT
@FORM
@with_client
async def run(
    client: AsyncClient,
    namespace: str,
    source: str,
    pool: str,
    k: int,
    weights: str | None,
    force: bool,
    name: str | None,
    temperature: float | None,
    sampling: tuple[str, ...],
    image: str | None,
    rerun_faulty: bool,
    by: str | None,
    solved_at: float | None,
    form: str,
) -> None:
    """Run each task k times, and show what the rollouts come to.

    An evaluation that was interrupted goes on when the same command is given again. Rollouts that end without a reward are
    counted apart, never as 0.
    """
    tasks = await _tasks(client, namespace, source, image)
    parameters = Sampling.model_validate(sampling_of(temperature, sampling))
    base, views = name or f"{pool}-{tasks_digest(tasks)[:8]}", list[EvaluationView]()
    for version, folder in _versions(weights):
        named = base if version is None else f"{base}-{version.replace('+', '_')}"
        left = await _left(client, namespace, named, len(tasks) * k, rerun_faulty=rerun_faulty)
        if version is not None and left:
            await _serve(client, namespace, pool, version, folder, named, force=force)
        click.echo(_opening(named, len(tasks), k, left), err=True)
        with counted_progress(max(left, 1)) as progress:
            ended = await client.evaluate(
                tasks, namespace, pool=pool, k=k, name=named, source=source, weights_version=version,
                sampling=parameters, rerun_faulty=rerun_faulty, progress=lambda trajectory: progress(""),
            )  # fmt: skip
        views.append(await client.evaluation(ended.request.name, namespace, by=by, solved_at=solved_at))
        if uncounted := ended.ended - ended.scored:
            click.echo(
                f"{uncounted} rollouts do not count; the same command with --rerun-faulty repeats them", err=True
            )
    first, *others = (view.request.name for view in views)
    comparisons = [await client.compare_evaluations(first, other, namespace, solved_at=solved_at) for other in others]
    if form == "json":
        found = {
            "evaluations": [view.model_dump(mode="json") for view in views],
            "comparisons": [one.model_dump(mode="json") for one in comparisons],
        }
        click.echo(json.dumps(found))
    else:
        parts = [*map(view_lines, views), *(comparison_lines(one, MAX_CHANGES) for one in comparisons)]
        click.echo(printable("\n\n".join("\n".join(part) for part in parts)))


@eval_.command("list")
@FORM
@with_client
async def list_(client: AsyncClient, namespace: str, form: str) -> None:
    """List evaluations, newest first."""
    found = await client.evaluations(namespace)
    if form == "json":
        click.echo(json.dumps([one.model_dump(mode="json") for one in found]))
    else:
        click.echo(printable("\n".join(list_lines(found))))


@eval_.command("show")
@click.argument("name")
@click.option("--tasks", "each", is_flag=True, help="also each task, the hardest first")
@BY
@SOLVED_AT
@HTML
@FORM
@with_client
async def show(
    client: AsyncClient,
    namespace: str,
    name: str,
    each: bool,
    by: str | None,
    solved_at: float | None,
    html: Path | None,
    form: str,
) -> None:
    """Show an evaluation with its statistics so far."""
    view = await client.evaluation(name, namespace, by=by, solved_at=solved_at)
    tasks = await client.evaluated_tasks(name, namespace) if each or html else []
    if html is not None:
        with written_file(html) as opened:
            opened.write(evaluation_page(view, tasks))
        return
    if form == "json":
        more = {"each": [task.model_dump(mode="json") for task in tasks]} if each else {}
        click.echo(json.dumps({**view.model_dump(mode="json"), **more}))
    else:
        lines = [*view_lines(view), *(["", *task_lines(tasks)] if each else [])]
        click.echo(printable("\n".join(lines)))


@eval_.command("compare")
@click.argument("first")
@click.argument("second")
@click.option("--all", "every", is_flag=True, help=f"all tasks that changed, not only {MAX_CHANGES} of each sort")
@SOLVED_AT
@HTML
@FORM
@with_client
async def compare(
    client: AsyncClient,
    namespace: str,
    first: str,
    second: str,
    every: bool,
    solved_at: float | None,
    html: Path | None,
    form: str,
) -> None:
    """Compare two evaluations task by task: which tasks got better or worse in the second, and is it more than chance?"""
    found = await client.compare_evaluations(first, second, namespace, solved_at=solved_at)
    if html is not None:
        views = [await client.evaluation(name, namespace, solved_at=solved_at) for name in (first, second)]
        with written_file(html) as opened:
            opened.write(comparison_page(found, *views))
        return
    if form == "json":
        click.echo(found.model_dump_json())
    else:
        click.echo(printable("\n".join(comparison_lines(found, None if every else MAX_CHANGES))))


@eval_.command("delete")
@click.argument("names", nargs=-1, required=True)
@with_client
async def delete(client: AsyncClient, namespace: str, names: tuple[str, ...]) -> None:
    """Delete evaluations with their results, and cancel their unfinished rollouts."""
    for name in names:
        await client.delete_evaluation(name, namespace)
        click.echo(f"evaluation/{name} deleted")


async def _tasks(client: AsyncClient, namespace: str, source: str, image: str | None) -> list[Task]:
    """Read the tasks of a file, or of a dataset if there is no such file."""
    if source == "-" or await asyncio.to_thread(os.path.exists, source):
        given = None if image is None else given_image(image, os.getcwd())
        found = [one.request.task for one in read_tasks(source, "e", {"pool": "any"}, given)]
    elif image is not None:
        raise click.UsageError("--image is for tasks of a file; the tasks of a dataset are as they were uploaded")
    else:
        try:
            found = await client.dataset_tasks(source, namespace)
        except NotFound as error:
            raise NotFound(f"{error}, and there is no file of this name") from None
    return list({task.digest: task for task in found}.values())


def _versions(words: str | None) -> list[tuple[str | None, str | None]]:
    """Return the versions and folders of --weights; one None if it is not given."""
    if words is None:
        return [(None, None)]
    parts = [word.partition("=") for word in words.split(",") if word]
    if not parts or len({version for version, _, _ in parts}) < len(parts):
        raise click.UsageError(
            "--weights: write different versions, such as v6,v7 or base=/models/base,v7=/ckpt/step700"
        )
    return [(version, folder or None) for version, _, folder in parts]


async def _left(client: AsyncClient, namespace: str, name: str, total: int, *, rerun_faulty: bool) -> int:
    """Return how many of an evaluation's rollouts are still to end."""
    try:
        found = await client.evaluation(name, namespace)
    except NotFound:
        return total
    repeats = rerun_faulty and found.state is EvaluationState.COMPLETED
    return max(0, total - (found.scored if repeats else found.ended))


def _opening(name: str, tasks: int, k: int, left: int) -> str:
    text = f"evaluation {name}: {tasks} tasks x {k} = {tasks * k} rollouts"
    if not left:
        return f"{text}, which have all ended earlier. A new --name runs them again"
    text += "" if left == tasks * k else f", {left} left"
    return f"{text}. If it is interrupted, the same command goes on; `rollyard eval delete {name}` cancels it"


async def _serve(
    client: AsyncClient, namespace: str, pool: str, version: str, folder: str | None, evaluation: str, *, force: bool
) -> None:
    """Make the pool's InferencePool serve a weights version. Raises RollyardError if it cannot, or if it has other rollouts."""
    found = await client.get(RolloutPool.key_of(namespace, pool))
    assert isinstance(found, RolloutPool)
    inference = found.spec.inference.get(POLICY_ROLE)
    if inference is None:
        raise RollyardError(
            f"rolloutpool/{pool} has no InferencePool for the role {POLICY_ROLE!r}, so no weights to evaluate"
        )
    status = await client.weights_status(namespace, inference)
    if status.current is not None and status.current.version == version and not _is_updating(status):
        return
    if not force and (others := await _others(client, namespace, inference, evaluation)):
        raise RollyardError(
            f"inferencepool/{inference} has unfinished rollouts of others ({others}), which other weights would disturb; "
            "wait for their end, evaluate in pools of your own, or give --force"
        )
    known = status.record(version)
    if folder is None and known is None:
        raise RollyardError(
            f"inferencepool/{inference} has never served weights {version!r}; write {version}=FOLDER, with the folder of the "
            "weights on the engines' nodes"
        )
    source = {"path": folder} if folder or known is None else {"path": known.path, "adapter": known.adapter}
    await client.update_weights(namespace, inference, WeightsUpdate(version=version, **source))
    click.echo(f"inferencepool/{inference}: updating to weights {version}", err=True)
    after = await client.wait_weights(namespace, inference, version)
    if after.current is None or after.current.version != version:
        why = after.operation.message if after.operation is not None else ""
        raise RollyardError(f"inferencepool/{inference} does not serve weights {version}: {why}")


def _is_updating(status: WeightsStatus) -> bool:
    return status.operation is not None and status.operation.is_running


async def _others(client: AsyncClient, namespace: str, inference: str, evaluation: str) -> str:
    """Return the numbers of unfinished rollouts that use an InferencePool and are not of this evaluation, for people."""
    pools, _ = await client.list_objects(RolloutPool.__name__, namespace)
    found = []
    for pool in pools:
        if isinstance(pool, RolloutPool) and inference in pool.spec.inference.values():
            name = pool.metadata.name
            live = [view.group async for view in client.rollouts(namespace, pool=name, status=ON_THE_WAY)]
            if others := sum(group != evaluation for group in live):
                found.append(f"{others} in rolloutpool/{name}")
    return ", ".join(found)
