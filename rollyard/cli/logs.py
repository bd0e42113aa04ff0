"""`rollyard logs`: what an allocation's job printed."""

from __future__ import annotations

import asyncio
import sys

import click

from rollyard.cli.options import kind_and_names, with_client
from rollyard.client.client import AsyncClient
from rollyard.errors import NotFound
from rollyard.kinds.allocation import Allocation


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ALLOCATION | KIND/NAME")
@click.option("-f", "--follow", is_flag=True)
@click.option("--tail", type=click.IntRange(min=0), help="only so many lines from the end")
@with_client
async def logs(client: AsyncClient, namespace: str, words: tuple[str, ...], follow: bool, tail: int | None) -> None:
    """Print the output of an allocation, or of all allocations of a pool."""
    names = await _allocations(client, namespace, words)
    if not names:
        raise NotFound(f"{'/'.join(words)} has no allocation")

    async def one(name: str) -> None:
        prefix = f"[{name}] ".encode() if len(names) > 1 else b""
        rest = b""
        async for chunk in client.log(namespace, name, follow=follow, tail=tail):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                sys.stdout.buffer.write(prefix + line + b"\n")
            sys.stdout.buffer.flush()
        if rest:
            sys.stdout.buffer.write(prefix + rest + b"\n")

    if follow:
        await asyncio.gather(*(one(name) for name in names))
    else:
        for name in names:
            await one(name)


async def _allocations(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> list[str]:
    if len(words) == 1 and "/" not in words[0]:
        return [words[0]]
    _, keys = kind_and_names(words, namespace)
    if keys and keys[0].kind == "Allocation":
        return [key.name for key in keys]
    pool = await client.get(keys[0])
    found, _ = await client.list_objects("Allocation", namespace)
    return [a.metadata.name for a in found if isinstance(a, Allocation) and a.spec.pool.uid == pool.metadata.uid]
