"""`rollyard logs`: the output of allocations' jobs, also of ended jobs, and the tool calls of rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

import click

from rollyard.cli.options import kind_and_names, with_client
from rollyard.cli.rollout_turns import print_turns
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import ApiError, NotFound
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.values.job_state import JobState


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="POOL | ALLOCATION | ROLLOUT | KIND/NAME")
@click.option("-f", "--follow", is_flag=True, help="wait until the job starts and print until it ends")
@click.option(
    "--previous",
    is_flag=True,
    help="show ended allocations: all kept ones of a pool, or the one before the named allocation",
)
@click.option("--tail", type=click.IntRange(min=0), help="number of lines from the end")
@with_client
async def logs(
    client: AsyncClient, namespace: str, words: tuple[str, ...], follow: bool, previous: bool, tail: int | None
) -> None:
    """Print the output of an allocation, or of a pool's jobs, or the tool calls of a rollout.

    A pool's name selects all its present jobs. --previous shows the output of ended allocations. Rollyard keeps the
    output of a pool's last three allocations that ended without a drain.

    A rollout's id, or rollout/ID, shows each turn's tool calls with their arguments, results and durations, and what the
    command of `type: command` prints. -f shows them as they happen, until the rollout ends. --tail counts turns.
    """
    if (id := await _rollout(client, namespace, words)) is not None:
        if previous:
            raise click.UsageError("--previous is for allocations; a rollout has the turns of its last attempt")
        return await print_turns(client, namespace, id, follow, tail)
    named = await _resolve_names(client, namespace, words)
    shown = await _select_allocations(client, named, previous)

    if follow:
        for allocation in shown:
            _print_waiting(allocation)
        await asyncio.gather(*(_print(client, a, shown, follow, tail) for a in shown))
        return
    silent = 0
    for allocation in shown:
        try:
            await _print(client, allocation, shown, follow, tail)
        except NotFound as error:
            silent += 1
            click.echo(f"error: {error}", err=True)
    if silent == len(shown):
        sys.exit(1)


async def _print(
    client: AsyncClient, allocation: Allocation, shown: Sequence[Allocation], follow: bool, tail: int | None
) -> None:
    """Print whole lines. If several allocations are shown, the allocation's name precedes each line."""
    meta = allocation.metadata
    prefix = f"[{meta.name}] ".encode() if len(shown) > 1 else b""
    rest = b""
    async for chunk in client.log(meta.namespace, meta.name, follow=follow, tail=tail):
        *lines, rest = (rest + chunk).split(b"\n")
        sys.stdout.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
        sys.stdout.buffer.flush()
    if rest:
        sys.stdout.buffer.write(prefix + rest + b"\n")
        sys.stdout.buffer.flush()


async def _rollout(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> str | None:
    """Return the id if a rollout is named. A name without a kind is first an allocation's or a pool's."""
    kind, slash, id = words[0].partition("/")
    if len(words) == 1 and slash and kind in ("rollout", "rollouts"):
        return id
    if len(words) == 2 and words[0] in ("rollout", "rollouts"):
        return words[1]
    if len(words) > 1 or slash:
        return None
    for other in ("Allocation", "RolloutPool", "InferencePool"):
        with contextlib.suppress(ApiError):  # no such object, or no name that an object can have
            await client.get(ObjectKey(kind=other, namespace=namespace, name=words[0]))
            return None
    try:
        return (await client.rollout(words[0], namespace))[0].id
    except NotFound:
        return None  # the error says which objects there are


async def _resolve_names(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> KindObject:
    """Return the named object. A name without a kind may be an allocation's or a pool's. Raises NotFound, UsageError."""
    if len(words) > 1 or "/" in words[0]:
        _, keys = kind_and_names(words, namespace)
        if len(keys) != 1 or keys[0].kind == "Event":
            raise click.UsageError("name one pool or one allocation: NAME or KIND/NAME")
        return await client.get(keys[0])
    found: list[KindObject] = []
    for kind in ("Allocation", "RolloutPool", "InferencePool"):
        try:
            found.append(await client.get(ObjectKey(kind=kind, namespace=namespace, name=words[0])))
        except NotFound:
            continue
    if not found:
        raise NotFound(f"namespace {namespace} has no allocation, no pool and no rollout {words[0]!r}")
    if len(found) > 1:
        both = " or ".join(f"{o.SINGULAR}/{o.metadata.name}" for o in found)
        raise click.UsageError(f"{words[0]!r} is the name of several objects; write {both}")
    return found[0]


async def _select_allocations(client: AsyncClient, named: KindObject, previous: bool) -> list[Allocation]:
    """Return the allocations to show. Raises NotFound if there are none; the error names --previous if it would help."""
    if isinstance(named, Allocation) and not previous:
        return [named]
    name = f"{named.SINGULAR}/{named.metadata.name}"
    uid = named.spec.pool.uid if isinstance(named, Allocation) else named.metadata.uid
    found, _ = await client.list_objects("Allocation", named.metadata.namespace)
    owned = sorted(
        (a for a in found if isinstance(a, Allocation) and a.spec.pool.uid == uid), key=lambda a: a.spec.index
    )
    ended = [a for a in owned if a.status.is_ended]
    if isinstance(named, Allocation):
        before = [a for a in ended if a.spec.index < named.spec.index][-1:]
        return before or _raise_no_logs(f"no output is kept of allocations of this pool that ended before {name}")
    if previous:
        return ended or _raise_no_logs(f"no output is kept of ended allocations of {name}")
    hint = f"; `rollyard logs {name} --previous` shows the output of ended ones" if ended else ""
    return [a for a in owned if not a.status.is_ended] or _raise_no_logs(f"{name} has no allocation now{hint}")


def _raise_no_logs(words: str) -> list[Allocation]:
    raise NotFound(words)


def _print_waiting(allocation: Allocation) -> None:
    status = allocation.status
    if status.job_state in (None, JobState.PENDING):
        where = (
            f"job {status.job_id} is PENDING: {status.waiting_reason}"
            if status.job_id
            else "its job is not in Slurm's queue yet"
        )
        click.echo(f"{allocation.metadata.name}: {where}; waiting for its output", err=True)
