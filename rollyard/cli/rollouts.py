"""Commands on rollouts: submit, rollouts get|list|cancel|describe, try."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
import pydantic

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.client.client import AsyncClient
from rollyard.errors import BadRequest, Invalid
from rollyard.kinds.rollout import RolloutRequest, RolloutView, Task, Trajectory

BATCH = 256


@click.command()
@click.option("-f", "--filename", "file", required=True, help="JSON lines, one task each; - for standard input")
@click.option("--pool", required=True, help="RolloutPool to run in")
@click.option("--n", default=1, help="rollouts of each task")
@click.option(
    "--id-prefix", default="", help="ids <prefix>-<line>: submitting the file again attaches to the same rollouts"
)
@click.option("--wait", is_flag=True, help="until all have ended")
@click.option("-o", "--output", "form", type=click.Choice(["summary", "id", "jsonl"]), default="summary")
@with_client
async def submit(
    client: AsyncClient, namespace: str, file: str, pool: str, n: int, id_prefix: str, wait: bool, form: str
) -> None:
    """Submit tasks as rollouts."""
    requests = _read_tasks(file, pool, n, id_prefix)
    ids: list[str] = []
    for start in range(0, len(requests), BATCH):
        ids += await client.submit(requests[start : start + BATCH], namespace)
    if form == "id":
        click.echo("\n".join(ids))
    elif form == "summary":
        click.echo(f"{len(ids)} rollouts accepted in pool {pool}")
    if not (wait or form == "jsonl"):
        return
    ended: list[Trajectory] = []
    for id in ids:
        trajectory = await client.wait(id, namespace)
        ended.append(trajectory)
        if form == "jsonl":
            click.echo(trajectory.model_dump_json())
    if form == "summary":
        click.echo("\n".join(_summary(ended)))


def _read_tasks(file: str, pool: str, n: int, id_prefix: str) -> list[RolloutRequest]:
    try:
        lines = (sys.stdin.read() if file == "-" else Path(file).read_text()).splitlines()
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}") from None
    requests = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given: dict[str, Any] = {"pool": pool, "n": n, "task": Task.model_validate_json(line)}
            if id_prefix:
                given["id"] = f"{id_prefix}-{number}"
            requests.append(RolloutRequest.model_validate(given))
        except pydantic.ValidationError as error:
            raise Invalid(
                f'{file}:{number}: {error.errors()[0]["msg"]}; a line is a task such as {{"kind": "math", …}}'
            ) from None
    if not requests:
        raise BadRequest(f"{file} holds no task")
    return requests


def _summary(ended: list[Trajectory]) -> list[str]:
    rows = [["STATUS", "ROLLOUTS", "MEAN REWARD"]]
    for status in sorted({t.status for t in ended}):
        rewards = [t.reward for t in ended if t.status == status and t.reward is not None]
        of_status = sum(t.status == status for t in ended)
        rows.append([status.value, str(of_status), f"{sum(rewards) / len(rewards):.3f}" if rewards else "-"])
    return align(rows)


@click.group()
def rollouts() -> None:
    """Look at rollouts, or cancel them."""


@rollouts.command("list")
@click.option("--pool")
@click.option("--group")
@click.option("--status", multiple=True)
@with_client
async def list_(
    client: AsyncClient, namespace: str, pool: str | None, group: str | None, status: tuple[str, ...]
) -> None:
    """One line a rollout."""
    rows = [["ID", "POOL", "KIND", "STATUS", "STAGE", "ATTEMPT", "REWARD", "ERROR"]]
    async for view in client.rollouts(namespace, pool=pool, group=group, status=status):
        rows.append(_row(view))
    click.echo("\n".join(align(rows)))


def _row(view: RolloutView) -> list[str]:
    reward = "-" if view.reward is None else f"{view.reward:g}"
    stage, error = view.stage.value if view.stage else "-", view.error.reason if view.error else "-"
    return [view.id, view.pool, view.task_kind, view.status.value, stage, str(view.attempt), reward, error]


@rollouts.command("get")
@click.argument("id")
@click.option("--wait", default=0.0, help="seconds to wait for its end")
@with_client
async def get(client: AsyncClient, namespace: str, id: str, wait: float) -> None:
    """The whole trajectory as JSON; the rollout's state while it has none."""
    view, trajectory = await client.rollout(id, namespace, wait=wait)
    click.echo((trajectory or view).model_dump_json(indent=2))


@rollouts.command("cancel")
@click.argument("ids", nargs=-1, required=True)
@with_client
async def cancel(client: AsyncClient, namespace: str, ids: tuple[str, ...]) -> None:
    """End rollouts; those that have ended stay as they are."""
    for id in ids:
        view = await client.cancel(id, namespace)
        click.echo(f"rollout/{id} {view.status.value.lower()}")


@rollouts.command("describe")
@click.argument("id")
@with_client
async def describe(client: AsyncClient, namespace: str, id: str) -> None:
    """For a person: state, turns, score."""
    view, trajectory = await client.rollout(id, namespace)
    click.echo("\n".join(align([["ID", "POOL", "KIND", "STATUS", "STAGE", "ATTEMPT", "REWARD", "ERROR"], _row(view)])))
    if view.waiting:
        click.echo(f"\n{view.waiting}")
    if view.weights_version:
        again = f", begun anew {view.outdated} times for its weights" if view.outdated else ""
        click.echo(f"\nweights {view.weights_version}{again}")
    if view.error:
        click.echo(f"\n{view.error.reason} in {view.error.stage}: {view.error.message}")
    if trajectory:
        click.echo("\n" + "\n".join(transcript(trajectory)))


@click.command(name="try")
@click.argument("task", metavar="TASK")
@click.option("--pool", required=True)
@click.option("--temperature", default=1.0)
@with_client
async def try_(client: AsyncClient, namespace: str, task: str, pool: str, temperature: float) -> None:
    """Run one task (a JSON file, or JSON itself) and print its turns."""
    (id,) = await client.submit([_one_task(task, pool, temperature)], namespace)
    said = ""
    while True:
        view, trajectory = await client.rollout(id, namespace, wait=0.3)
        now = view.status.value if view.stage is None else f"{view.status.value} {view.stage.value}"
        if now != said:
            click.echo(f"rollout/{id} {now}", err=True)
            said = now
        if trajectory is not None:
            click.echo("\n".join(transcript(trajectory)))
            return
        await asyncio.sleep(0)


def _one_task(task: str, pool: str, temperature: float) -> RolloutRequest:
    try:
        text = task if task.lstrip().startswith("{") else Path(task).read_text()
        given = {"pool": pool, "task": Task.model_validate_json(text), "sampling": {"temperature": temperature}}
        return RolloutRequest.model_validate(given)
    except OSError as error:
        raise BadRequest(f"{task}: {error.strerror}") from None
    except pydantic.ValidationError as error:
        raise Invalid(f"{task} is no task: {error.errors()[0]['msg']}") from None


def transcript(trajectory: Trajectory) -> list[str]:
    """The conversation as text, for people; what counts for training is in the segments."""
    lines = [f"task: {json.dumps(trajectory.task.model_dump(), ensure_ascii=False)[:2000]}"]
    for number, turn in enumerate(trajectory.turns, start=1):
        lines += ["", f"--- turn {number}: {turn.prompt_length} + {turn.response_length} tokens", turn.text]
        for result in turn.tool_results:
            lines += ["--- tool result", result]
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    lines += ["", f"=== {trajectory.status.value}, reward {reward} {dict(trajectory.metrics)}"]
    if trajectory.error:
        lines.append(f"    {trajectory.error.reason}: {trajectory.error.message}")
    return lines
