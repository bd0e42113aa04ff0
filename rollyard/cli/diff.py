"""`rollyard diff`: the changes that an apply would make, in objects and in submitted batch scripts."""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click
import yaml

from rollyard.cli.manifests import read_manifests
from rollyard.cli.options import with_client
from rollyard.client.async_client import AsyncClient
from rollyard.client.object_client import LAST_APPLIED
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import Pool

log = logging.getLogger(__name__)

DIFFERENT, FAILED = 1, 2
_OURS = ("uid", "resourceVersion", "generation", "creationTimestamp", "finalizers")


def _exit_2_on_failure(command: Callable[..., None]) -> Callable[..., None]:
    """Make the command exit with 2 after an error. Other commands use 1, but 1 means here that there are changes."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except (RollyardError, OSError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(FAILED)
        except Exception:
            log.exception("diff broke")
            sys.exit(FAILED)

    return run


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="file, folder, or - for standard input")
@_exit_2_on_failure
@with_client
async def diff(client: AsyncClient, namespace: str, files: tuple[str, ...]) -> None:
    """Show the changes that apply would make.

    For a changed pool, the batch scripts are compared too. Exit code: 0 without changes, 1 with changes, above 1 after an
    error.
    """
    changed = False
    for obj in read_manifests(files, namespace):
        lines = await _difference(client, obj)
        changed = changed or bool(lines)
        if lines:
            click.echo("\n".join(lines))
    sys.exit(DIFFERENT if changed else 0)


async def _difference(client: AsyncClient, obj: KindObject) -> list[str]:
    live = await _live(client, obj)
    _, after = await client.apply(obj, dry_run=True)
    name = f"{obj.SINGULAR}/{obj.metadata.namespace}/{obj.metadata.name}"
    lines = _unified(name, _user_yaml(live), _user_yaml(after))
    if not lines or not isinstance(after, Pool):
        return lines
    now = (await client.submission(live.key)).script if live is not None else ""
    then = await client.submission(after)
    return [*lines, *_unified(f"{name}/batch.sh", now.splitlines(), then.script.splitlines()), then.summary]


async def _live(client: AsyncClient, obj: KindObject) -> KindObject | None:
    try:
        return await client.get(obj.key)
    except NotFound:
        return None


def _user_yaml(obj: KindObject | None) -> list[str]:
    """Return the object's user-written fields as YAML."""
    if obj is None:
        return []
    data = obj.dump()
    metadata = {k: v for k, v in data["metadata"].items() if k not in _OURS}
    metadata["annotations"] = {k: v for k, v in metadata.get("annotations", {}).items() if k != LAST_APPLIED}
    shown = {**{k: data[k] for k in ("apiVersion", "kind")}, "metadata": metadata, "spec": data["spec"]}
    return str(yaml.safe_dump(shown, sort_keys=False)).splitlines()


def _unified(name: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    return list(difflib.unified_diff(before, after, f"live/{name}", f"applied/{name}", lineterm=""))
