"""Commands on objects: apply, get, delete, scale, suspend, resume, wait, events, api-resources."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

import click
import yaml

from rollyard.cli.manifests import read_manifests
from rollyard.cli.missing_files import missing_file_warning
from rollyard.cli.options import kind_and_names, kinds_of, named, with_client, with_client_of_a_new_server
from rollyard.cli.output import Table, align, show, table
from rollyard.cli.parameter_types import DURATION
from rollyard.client.async_client import AsyncClient
from rollyard.client.object_client import manifest_of
from rollyard.core.errors import NoProgress, NotFound
from rollyard.kinds.base import API_VERSION, Condition, KindObject, ObjectKey
from rollyard.kinds.event import Event
from rollyard.kinds.pool import STANDSTILL
from rollyard.kinds.registry import KINDS, Pool

POLL_SECONDS = 0.2
REPORT_SECONDS = 2.0
"""Seconds until a wait first prints its reason; also the least number of seconds between two printed reasons."""
_OF_POOLS = ("ready", "updated")


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="file, folder, or - for standard input")
@click.option(
    "--dry-run",
    type=click.Choice(["none", "client", "server"]),
    default="none",
    help="only check the files: in this program (client) or on the server",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["yaml", "json"]),
    help="with --dry-run=client: print the objects in this format",
)
@click.option(
    "--wait/--no-wait",
    default=False,
    help="wait until each pool is Ready and Updated; exit code 1 if that cannot happen",
)
@click.option("--timeout", default=900.0, type=DURATION, show_default=True, help="time to wait, such as 90s or 10m")
@with_client_of_a_new_server
async def apply(
    client: AsyncClient,
    namespace: str,
    files: tuple[str, ...],
    dry_run: str,
    form: str | None,
    wait: bool,
    timeout: float,
) -> None:
    """Create or change objects as YAML files declare them.

    A relative path in a file is relative to that file. --dry-run=client -o yaml prints the objects with absolute paths,
    for other clients such as kubectl. It waits for the server too, whose namespace it takes.

    --dry-run=server changes nothing. The server checks the objects; the output shows the batch script of an allocation
    and a line about the jobs that would be submitted.
    """
    if form is not None and dry_run != "client":
        raise click.UsageError(
            "-o works with --dry-run=client only; `rollyard get -o yaml` prints the server's objects"
        )
    applied: list[Pool] = []
    for obj in read_manifests(files, namespace):
        name = f"{obj.SINGULAR}/{obj.metadata.name}"
        if form is not None:
            config = manifest_of(obj)
            click.echo(
                json.dumps(config) if form == "json" else f"---\n{yaml.safe_dump(config, sort_keys=False)}",
                nl=form == "json",
            )
            continue
        if dry_run == "client":
            click.echo(f"{name} would be applied (client dry run)")
            continue
        change, after = await client.apply(obj, dry_run=dry_run == "server")
        click.echo(f"{name} {change}{' (server dry run)' if dry_run == 'server' else ''}")
        if (warning := missing_file_warning(obj)) is not None:
            click.echo(f"Warning: {warning}", err=True)
        if dry_run == "none" and isinstance(after, Pool):
            applied.append(after)
        if dry_run == "server" and isinstance(after, Pool):
            shown = await client.submission(after)
            click.echo("\n".join([*shown.script.splitlines(), shown.summary]))
    for pool in applied if wait else ():
        for type in ("Ready", "Updated"):
            await wait_until(
                client, pool.key, partial(condition_holds, type=type, status="True"), timeout, f"is not {type}"
            )
        click.echo(f"{pool.SINGULAR}/{pool.metadata.name} is ready and up to date")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME...]")
@click.option("-w", "--watch", is_flag=True, help="print changes until interrupted")
@click.option("-A", "--all-namespaces", is_flag=True, help="objects of all namespaces")
@click.option("-l", "--selector", default="", help="label selector")
@click.option("-o", "--output", "form", default="", help="output format: wide, yaml, json, name or jsonpath={…}")
@with_client
async def get(
    client: AsyncClient,
    namespace: str,
    words: tuple[str, ...],
    watch: bool,
    all_namespaces: bool,
    selector: str,
    form: str,
) -> None:
    """Show objects of one kind, or of several: `get ip,rp`."""
    where = None if all_namespaces else namespace
    kinds = kinds_of(words[0]) if len(words) == 1 and "/" not in words[0] else []
    if len(kinds) > 1:
        if watch:
            raise click.UsageError("--watch works with one kind only; name one kind")
        await _show_kinds(client, kinds, where, selector, form)
        return
    kind, keys = kind_and_names(words, namespace)
    word = kind.model_fields["kind"].default
    since = "0"
    if keys:
        objects = [await client.get(key) for key in keys]
    else:
        objects, since = await client.list_objects(word, where, labels=selector)
    rows = Table(kind, wide=form == "wide", namespaces=all_namespaces) if form in ("", "wide") else None
    if not objects and rows is not None:
        await _echo_nothing(client, where, [kind])
    elif rows is not None:
        click.echo("\n".join(rows.lines(objects)))
    else:
        show(kind, objects, form, one=len(keys) == 1)
    if watch:
        names, seen = {k.name for k in keys}, {o.metadata.uid: o.metadata.resource_version for o in objects}
        async for _, obj in client.watch(word, where, since=since):
            known = seen.get(obj.metadata.uid) == obj.metadata.resource_version
            if known or (names and obj.metadata.name not in names):
                continue
            if rows is not None:
                click.echo("\n".join(rows.lines([obj])))
            else:
                show(kind, [obj], form, one=True)


async def _show_kinds(
    client: AsyncClient, kinds: Sequence[type[KindObject]], where: str | None, selector: str, form: str
) -> None:
    """Print a table for each kind that has objects, or only the names. The kind precedes each name, as in kubectl."""
    if form not in ("", "wide", "name"):
        raise click.UsageError(f"-o {form} works with one kind only; for several kinds use -o wide, -o name or no -o")
    tables: list[str] = []
    for kind in kinds:
        objects, _ = await client.list_objects(kind.model_fields["kind"].default, where, labels=selector)
        if form == "name":
            tables += ["\n".join(f"{kind.SINGULAR}/{o.metadata.name}" for o in objects)] if objects else []
        elif objects:
            lines = table(kind, objects, wide=form == "wide", namespaces=where is None, prefix=f"{kind.SINGULAR}/")
            tables.append("\n".join(lines))
    if tables:
        click.echo(("\n" if form == "name" else "\n\n").join(tables))
    else:
        await _echo_nothing(client, where, kinds)


async def _echo_nothing(client: AsyncClient, where: str | None, kinds: Sequence[type[KindObject]]) -> None:
    """Say that there is nothing, and which other namespaces have objects of these kinds."""
    if where is None:
        click.echo("No resources found.", err=True)
        return
    found = [await client.list_objects(kind.model_fields["kind"].default) for kind in kinds if kind is not Event]
    others = sorted({obj.metadata.namespace for objects, _ in found for obj in objects} - {where})
    hint = f" There are some in {', '.join(others)}: use -n, or -A for all namespaces." if others else ""
    click.echo(f"No resources found in {where} namespace.{hint}", err=True)


@click.command()
@click.argument("words", nargs=-1, metavar="KIND NAME...")
@click.option("-f", "--filename", "files", multiple=True, help="delete the objects that these files declare")
@click.option("--wait/--no-wait", default=True, help="wait until they are gone")
@click.option("--timeout", default=900.0, type=DURATION, show_default=True, help="time to wait, such as 90s or 10m")
@with_client
async def delete(
    client: AsyncClient, namespace: str, words: tuple[str, ...], files: tuple[str, ...], wait: bool, timeout: float
) -> None:
    """Delete objects. A pool drains first, then ends its jobs, then disappears."""
    keys = (
        [obj.key for obj in read_manifests(files, namespace)]
        if files
        else kind_and_names(words, namespace)[1]
        if words
        else []
    )
    if not keys:
        raise click.UsageError("name the objects to delete: KIND NAME, KIND/NAME, or -f FILE")
    for key in keys:
        await client.delete(key)
        click.echo(f"{KINDS[key.kind].SINGULAR}/{key.name}: deletion started; it drains and ends its jobs first")
    if wait:
        for key in keys:
            await wait_until(client, key, _deleted, timeout, "still exists")
            click.echo(f"{KINDS[key.kind].SINGULAR}/{key.name} deleted")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@click.option("--replicas", type=click.IntRange(min=0), required=True, help="new number of allocations")
@with_client
async def scale(client: AsyncClient, namespace: str, words: tuple[str, ...], replicas: int) -> None:
    """Set the fixed size of a pool."""
    for key in named(words, namespace):
        await client.scale(key, replicas)
        click.echo(f"{KINDS[key.kind].SINGULAR}/{key.name} scaled")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@with_client
async def suspend(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> None:
    """Give back a pool's allocations and keep the pool."""
    await _set_suspend(client, named(words, namespace), True)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@with_client
async def resume(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> None:
    """Resume a suspended pool."""
    await _set_suspend(client, named(words, namespace), False)


async def _set_suspend(client: AsyncClient, keys: list[ObjectKey], value: bool) -> None:
    for key in keys:
        await client.patch(key, {"spec": {"suspend": value}})
        click.echo(f"{KINDS[key.kind].SINGULAR}/{key.name} {'suspended' if value else 'resumed'}")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@click.option("--for", "what", required=True, help="condition=TYPE[=STATUS] or delete")
@click.option("--timeout", default=60.0, type=DURATION, show_default=True, help="time to wait, such as 90s or 10m")
@with_client_of_a_new_server
async def wait(client: AsyncClient, namespace: str, words: tuple[str, ...], what: str, timeout: float) -> None:
    """Wait until a condition holds, or an object is gone.

    A pool is Ready when the desired number of allocations serves. A pool is Updated when the desired number of
    allocations was made from the present spec and became ready, and all older ones drain. If the pool cannot meet the
    condition without a change, the command prints the reason and exits with code 1.
    """
    word, _, rest = what.partition("=")
    type, _, status = rest.partition("=")
    if what != "delete" and (word != "condition" or not type):
        raise click.UsageError("write --for condition=TYPE, --for condition=TYPE=STATUS, or --for delete")
    holds = _deleted if what == "delete" else partial(condition_holds, type=type, status=status or "True")
    for key in named(words, namespace):
        if what != "delete":
            await client.get(key)  # raises NotFound for an object that never existed
        complaint = "still exists" if what == "delete" else f"did not reach {what}"
        obj = await wait_until(client, key, holds, timeout, complaint, types=(type,) if type else _OF_POOLS)
        click.echo(f"{KINDS[key.kind].SINGULAR}/{key.name} " + ("deleted" if what == "delete" else "condition met"))
        if type.lower() == "ready" and (
            left := next((c for c in _current_conditions(obj) if c.reason == "Updating"), None)
        ):
            click.echo(f"not up to date yet ({left.message}); to wait for that, use --for condition=Updated", err=True)


def _deleted(obj: KindObject | None) -> bool:
    return obj is None


def condition_holds(obj: KindObject | None, *, type: str, status: str) -> bool:
    """Return whether a condition has this status at the object's generation.

    Raises NotFound if the object is gone. Raises NoProgress in a wait for Ready or Updated, if the pool first needs a
    change by a person.
    """
    if obj is None:
        raise NotFound("the object was deleted during the wait")
    current = _current_conditions(obj)
    if type.lower() in _OF_POOLS and status.lower() == "true":
        for fact in current:
            if fact.type.lower() in _OF_POOLS and fact.status == "False" and fact.reason in STANDSTILL:
                raise NoProgress(f"{obj.SINGULAR}/{obj.metadata.name}: {fact.type} is False: {fact.why}")
    return any(c.type.lower() == type.lower() and c.status.lower() == status.lower() for c in current)


def _current_conditions(obj: KindObject | None) -> list[Condition]:
    """Return the conditions that were observed at the object's present generation."""
    conditions: list[Condition] = getattr(getattr(obj, "status", None), "conditions", [])
    return [c for c in conditions if obj is not None and c.observed_generation >= obj.metadata.generation]


def waiting_text(obj: KindObject | None, types: Sequence[str]) -> str:
    """Return the reason for a wait: the present status of the awaited conditions, or that the object does not have them.

    In a wait for Ready or Updated, each of these two conditions is shown while it is False. The text may be empty.
    """
    current = _current_conditions(obj)
    wanted = {type.lower() for type in types} | ({*_OF_POOLS} if {t.lower() for t in types} & {*_OF_POOLS} else set())
    if not current:
        return "the server has not processed it yet"
    if not any(c.type.lower() in wanted for c in current):
        return f"it has no condition {' or '.join(types)}; it has {', '.join(c.type for c in current)}"
    found = [
        c for c in current if c.type.lower() in wanted and (c.status == "False" or c.type.lower() not in _OF_POOLS)
    ]
    return "; ".join(f"{c.type} is {c.status}: {c.why}" for c in found)


async def wait_until(
    client: AsyncClient,
    key: ObjectKey,
    holds: Callable[[KindObject | None], bool],
    seconds: float,
    complaint: str,
    types: Sequence[str] = _OF_POOLS,
) -> KindObject | None:
    """Wait until `holds(object)` is true, and return the object; None if it is gone. Raises the errors of `holds`.

    A new reason for the wait is printed on stderr, at most one in REPORT_SECONDS. After `seconds` the process ends with
    exit code 1.
    """
    obj: KindObject | None = None
    name, reported, loop = f"{KINDS[key.kind].SINGULAR}/{key.name}", "", asyncio.get_running_loop()
    report_at = loop.time() + REPORT_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    obj = await client.get(key)
                except NotFound:
                    obj = None
                if holds(obj):
                    return obj
                why = waiting_text(obj, types)
                if why and why != reported and loop.time() >= report_at:
                    click.echo(f"{name}: {why}", err=True)
                    reported, report_at = why, loop.time() + REPORT_SECONDS
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        why = waiting_text(obj, types)
        click.echo(f"error: timed out: {name} {complaint} after {seconds:g} s{f'; {why}' if why else ''}", err=True)
        sys.exit(1)


@click.command()
@click.option("--for", "about", default="", help="KIND/NAME")
@click.option("--warnings", is_flag=True, help="only warnings")
@click.option("-A", "--all-namespaces", is_flag=True, help="objects of all namespaces")
@with_client
async def events(client: AsyncClient, namespace: str, about: str, warnings: bool, all_namespaces: bool) -> None:
    """Show events, oldest first."""
    fields = ["type=Warning"] if warnings else []
    if about:
        keys = kind_and_names((about,), namespace)[1]
        if not keys:
            raise click.UsageError("write --for KIND/NAME")
        fields += [f"involvedObject.kind={keys[0].kind}", f"involvedObject.name={keys[0].name}"]
    found, _ = await client.list_objects("Event", None if all_namespaces else namespace, fields=",".join(fields))
    seen = sorted((e for e in found if isinstance(e, Event)), key=lambda e: e.last_timestamp)
    click.echo("\n".join(table(Event, seen, wide=False, namespaces=all_namespaces)))


@click.command()
def api_resources() -> None:
    """List the kinds."""
    rows = [["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]]
    rows += [[k.PLURAL, ",".join(k.SHORT), API_VERSION, "true", name] for name, k in sorted(KINDS.items())]
    click.echo("\n".join(align(rows)))
