"""`rollyard token rotate`."""

from __future__ import annotations

from datetime import datetime

import click

from rollyard.cli.options import with_client
from rollyard.cli.parameter_types import DURATION
from rollyard.client.async_client import AsyncClient
from rollyard.client.kubeconfig import load_context, write_token


@click.group()
def token() -> None:
    """Renew the tokens with which jobs and people reach the server."""


@token.command()
@click.option(
    "--overlap",
    type=DURATION,
    default=86_400.0,
    help="time for which earlier tokens stay valid, such as 1h; 0s after a leak  [default: 24h]",
)
@with_client
async def rotate(client: AsyncClient, namespace: str, overlap: float) -> None:
    """Make a new key and new tokens. Running jobs follow by themselves. The kubeconfig of this command gets the new token;
    copies of it elsewhere, and sessions of external agents, keep their tokens until the overlap ends."""
    result = await client.rotate_tokens(overlap)
    file = client.context.file
    if file is not None and load_context(file).token != result.token:  # admin.kubeconfig has it from the server
        write_token(file, result.token)
    until = datetime.fromtimestamp(result.earlier_until).astimezone()
    earlier = f"are valid until {until:%Y-%m-%d %H:%M:%S %z}" if overlap else "are no longer valid"
    click.echo(f"tokens rotated: {result.jobs} jobs have new ones; earlier tokens {earlier}")
    if file is not None:
        click.echo(f"{file} has the new token; replace copies of it")
