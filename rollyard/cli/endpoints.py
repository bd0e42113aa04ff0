"""`rollyard endpoints`: lists an InferencePool's model servers, and adds and removes external model servers."""

from __future__ import annotations

import click

from rollyard.cli.describe import endpoint_lines
from rollyard.cli.options import with_client
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import BadRequest
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.engine_spec import ExternalEndpoint


@click.group()
def endpoints() -> None:
    """Show, add and remove model servers of an InferencePool."""


@endpoints.command("list")
@click.argument("pool")
@with_client
async def list_(client: AsyncClient, namespace: str, pool: str) -> None:
    """Show the model servers of a pool."""
    click.echo("\n".join(endpoint_lines(await client.endpoints(_key(namespace, pool)))))


@endpoints.command()
@click.argument("pool")
@click.argument("url")
@click.option("--capacity", default=1.0, help="weight in load balancing, such as its number of GPUs")
@click.option("--token-file", help="file with its bearer token; a path on the server's machine")
@with_client
async def add(
    client: AsyncClient, namespace: str, pool: str, url: str, capacity: float, token_file: str | None
) -> None:
    """Add a model server, such as http://node7:8000/v1, to a pool with an external engine."""
    try:
        endpoint = ExternalEndpoint(url=url, capacity=capacity, token_file=token_file)
    except ValueError:
        raise BadRequest("URL must begin with http:// or https://, and the capacity must be above 0") from None
    await client.add_endpoint(_key(namespace, pool), endpoint)
    click.echo(f"inferencepool/{pool}: endpoint {url} added")


@endpoints.command()
@click.argument("pool")
@click.argument("url")
@with_client
async def remove(client: AsyncClient, namespace: str, pool: str, url: str) -> None:
    """Remove a model server from a pool. Rollouts at this model server move to other ones at their next turn."""
    await client.remove_endpoint(_key(namespace, pool), url)
    click.echo(f"inferencepool/{pool}: endpoint {url} removed")


def _key(namespace: str, pool: str) -> ObjectKey:
    return ObjectKey(kind="InferencePool", namespace=namespace, name=pool)
