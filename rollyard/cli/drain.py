"""The command `rollyard drain`."""

from __future__ import annotations

import click

from rollyard.cli.options import with_client
from rollyard.cli.parameter_types import DURATION
from rollyard.client import AsyncClient
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey


@click.command()
@click.argument("names", nargs=-1, metavar="[ALLOCATION...]")
@click.option("--node", help="drain the allocations of all pools in the namespace that run on this node")
@click.option("--grace", type=DURATION, help="time to finish work, such as 90s or 10m  [default: the pool's]")
@with_client
async def drain(
    client: AsyncClient, namespace: str, names: tuple[str, ...], node: str | None, grace: float | None
) -> None:
    """Drain allocations, by name or by node.

    They take no new work, and their pools make others in their place.
    What is not done at the end of the grace moves: other allocations go on after its last turn.
    """
    if bool(names) == bool(node):
        raise click.UsageError("name allocations (`rollyard get alloc`), or a node with --node")
    if node is not None:
        found, _ = await client.list_objects("Allocation", namespace)
        names = tuple(
            a.metadata.name
            for a in found
            if isinstance(a, Allocation) and a.status.node == node and not a.status.is_ended
        )
        if not names:
            raise click.ClickException(f"no allocation in namespace {namespace} runs on node {node}")
    for name in names:
        short = name.removeprefix("allocation/").removeprefix("alloc/")
        await client.drain(ObjectKey(kind="Allocation", namespace=namespace, name=short), grace)
        click.echo(f"allocation/{short} draining")
