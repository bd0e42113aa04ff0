"""Commands on datasets: put, list, delete."""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.only_checked import Chosen, only_checked
from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.rollout_requests import read_tasks
from rollyard.client.async_client import AsyncClient
from rollyard.kinds.task import Task


@click.group()
def datasets() -> None:
    """Upload, list or delete datasets, which batches draw tasks from."""


@datasets.command("put")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@only_checked
@with_client
async def put(client: AsyncClient, namespace: str, name: str, file: Path, checked: Chosen) -> None:
    """Upload a file of JSON lines, one task a line. A second upload of the same content changes nothing."""
    tasks: Path | list[Task] = file
    if checked.report is not None:
        numbered = read_tasks(str(file), name, {"pool": "any"})
        tasks = checked.choose([one.request.task for one in numbered], lambda task: task)
    view = await client.put_dataset(name, tasks, namespace)
    click.echo(f"dataset/{name} has {view.tasks} tasks (sha256 {view.digest[:12]}…)")


@datasets.command("list")
@with_client
async def list_(client: AsyncClient, namespace: str) -> None:
    """List datasets."""
    rows = [["NAME", "TASKS", "KINDS", "SHA256"]]
    rows += [[d.name, str(d.tasks), ",".join(d.kinds), d.digest[:12]] for d in await client.datasets(namespace)]
    click.echo("\n".join(align(rows)))


@datasets.command("delete")
@click.argument("names", nargs=-1, required=True)
@with_client
async def delete(client: AsyncClient, namespace: str, names: tuple[str, ...]) -> None:
    """Delete datasets, the history of their tasks, and the record of which tasks are drawn next."""
    for name in names:
        await client.delete_dataset(name, namespace)
        click.echo(f"dataset/{name} deleted")
