"""Commands on the revisions of a pool: restart, history, undo."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import yaml

from rollyard.cli.objects import condition_holds, wait_until
from rollyard.cli.options import named, with_client
from rollyard.cli.output import align
from rollyard.cli.parameter_types import DURATION
from rollyard.cli.printable import printable
from rollyard.client.async_client import AsyncClient
from rollyard.client.object_client import merge_patch
from rollyard.core.errors import BadRequest, Conflict
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.pool import Revision
from rollyard.kinds.registry import Pool
from rollyard.kinds.revised_fields import REVISED_FIELDS

VALUE_CHARS = 60
"""Greatest length of a value in the table of revisions."""
_waits = click.option("--wait/--no-wait", "waits", default=False, help="wait until all allocations are replaced")
_timeout = click.option(
    "--timeout", default=900.0, type=DURATION, show_default=True, help="with --wait: time to wait, such as 90s or 10m"
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@_waits
@_timeout
@with_client
async def restart(client: AsyncClient, namespace: str, words: tuple[str, ...], waits: bool, timeout: float) -> None:
    """Replace all allocations of a pool, one after the other.

    Each old allocation drains when its successor is ready, so no rollout is lost. `spec.renewal` has the number that is
    replaced at a time, and the time for draining.
    """
    for key in named(words, namespace):
        pool = await _pool(client, key)
        now = datetime.now(UTC).replace(microsecond=0)
        if pool.spec.restarted_at is not None and pool.spec.restarted_at >= now:
            raise BadRequest(
                f"{pool.SINGULAR}/{key.name} was restarted within this second; wait before you do it again"
            )
        await client.patch(key, {"spec": {"restartedAt": now.isoformat()}})
        none = "" if pool.status.replicas.desired else "; it has no allocations at present"
        click.echo(f"{pool.SINGULAR}/{key.name} restarted{none}")
        if waits:
            await _wait(client, pool, timeout)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@click.option("--revision", type=click.IntRange(1), help="print the template of this revision as YAML")
@with_client
async def history(client: AsyncClient, namespace: str, words: tuple[str, ...], revision: int | None) -> None:
    """Show the revisions of a pool.

    A revision is a template from which the pool's allocations were made. The last ten are kept. CHANGED has each field with
    its value before and after; `(default)` stands for a field that was not set.
    """
    for key in named(words, namespace):
        pool = await _pool(client, key)
        if revision is not None:
            click.echo(yaml.safe_dump(_find(pool, revision).template, sort_keys=False), nl=False)
            continue
        rows, before = [["REVISION", "TIME", "CHANGED"]], None
        for found in pool.status.revisions:
            if before is None:
                changed = "the first" if found.number == 1 else "<unknown>"
            else:
                changed = ", ".join(_changed(before.template, found.template))
            rows.append([str(found.number), f"{found.time.astimezone(UTC):%Y-%m-%d %H:%M:%S}", changed])
            before = found
        click.echo(printable("\n".join(align(rows))))


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@click.option("--to-revision", type=click.IntRange(1), help="number of the revision  [default: the one before]")
@_waits
@_timeout
@with_client
async def undo(
    client: AsyncClient, namespace: str, words: tuple[str, ...], to_revision: int | None, waits: bool, timeout: float
) -> None:
    """Give a pool the template of an earlier revision. Its allocations are replaced as by any change."""
    for key in named(words, namespace):
        pool = await _pool(client, key)
        before = _template(pool)
        earlier = [one for one in pool.status.revisions if one.template != before]
        if to_revision is None and not earlier:
            raise BadRequest(f"{pool.SINGULAR}/{key.name} has no earlier revision")
        found = earlier[-1] if to_revision is None else _find(pool, to_revision)
        if before == found.template:
            click.echo(f"{pool.SINGULAR}/{key.name} skipped: its template is that of revision {found.number}")
            continue
        await _set_template(client, pool, merge_patch(before, found.template))
        click.echo(f"{pool.SINGULAR}/{key.name} has the template of revision {found.number} again")
        if waits:
            await _wait(client, pool, timeout)


def _template(pool: Pool) -> dict[str, Any]:
    spec = pool.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {field: spec[field] for field in REVISED_FIELDS[pool.kind] if field in spec}


async def _set_template(client: AsyncClient, pool: Pool, change: dict[str, Any]) -> None:
    """Change the pool's template. Raises Conflict if somebody else has changed it meanwhile; a new status is no change."""
    key, before = pool.key, _template(pool)
    while True:
        version = {"resourceVersion": pool.metadata.resource_version}
        try:
            await client.patch(key, {"metadata": version, "spec": change})
            return
        except Conflict:
            if _template(pool := await _pool(client, key)) != before:
                raise


async def _pool(client: AsyncClient, key: ObjectKey) -> Pool:
    found = await client.get(key)
    if not isinstance(found, Pool):
        raise click.UsageError("name a pool: rp/NAME or ip/NAME")
    return found


async def _wait(client: AsyncClient, pool: Pool, seconds: float) -> None:
    holds = partial(condition_holds, type="Updated", status="True")
    await wait_until(client, pool.key, holds, seconds, "is not Updated")
    click.echo(f"{pool.SINGULAR}/{pool.metadata.name} is up to date")


def _find(pool: Pool, number: int) -> Revision:
    for found in pool.status.revisions:
        if found.number == number:
            return found
    kept = ", ".join(str(found.number) for found in pool.status.revisions) or "none"
    raise BadRequest(f"{pool.SINGULAR}/{pool.metadata.name} has no revision {number}; it has {kept}")


def _changed(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields that differ, with both values."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if before != after:
            yield f"{path}: {_value(before)} -> {_value(after)}"
        return
    for name in sorted({*before, *after}):
        yield from _changed(before.get(name), after.get(name), f"{path}.{name}" if path else name)


def _value(value: Any) -> str:
    """Return a value of a template as one short text."""
    if value is None:
        return "(default)"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= VALUE_CHARS else f"{text[: VALUE_CHARS - 1]}…"
