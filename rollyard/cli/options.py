"""Options and arguments that several commands share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import click

from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import BadRequest, Unavailable
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.registry import KINDS, find_kind

Run = Callable[..., Coroutine[Any, Any, None]]


RETRY_SECONDS = 10.0
"""Time for which a command waits for an unreachable server. A restart of the server takes a second or two, on a busy machine
some more."""
START_SECONDS = 20.0
"""Time for which a command of `with_client_of_a_new_server` waits for a server that has just been started."""


def with_client(command: Run) -> Callable[..., None]:
    """Turn a function into a command with --kubeconfig and --namespace. The function's first arguments are a client and
    the namespace."""
    return _with_client(command, starts=False)


def with_client_of_a_new_server(command: Run) -> Callable[..., None]:
    """Do the same as `with_client`, but first wait for the server: the command often follows `rollyard serve &`."""
    return _with_client(command, starts=True)


def _with_client(command: Run, *, starts: bool) -> Callable[..., None]:
    @click.option("--kubeconfig", type=click.Path(path_type=Path), help="the server's admin.kubeconfig")
    @click.option("-n", "--namespace", help="namespace  [default: the kubeconfig's]")
    @wraps(command)
    def run(kubeconfig: Path | None, namespace: str | None, **arguments: Any) -> None:
        async def body() -> None:
            if starts:
                await _wait_for_server(kubeconfig)
            async with AsyncClient(
                kubeconfig=kubeconfig, warn=_once_per_warning(), retry_seconds=RETRY_SECONDS
            ) as client:
                await command(client, namespace or client.context.namespace, **arguments)

        try:
            asyncio.run(body())
        except KeyboardInterrupt:
            sys.exit(130)

    return run


async def _wait_for_server(kubeconfig: Path | None) -> None:
    """Wait until the server answers. Each try reads the kubeconfig again, because a new server writes this file.

    After START_SECONDS, raises the BadRequest or Unavailable of the last try.
    """
    loop, reported = asyncio.get_running_loop(), False
    deadline = loop.time() + START_SECONDS
    while True:
        try:
            async with AsyncClient(kubeconfig=kubeconfig, retry_seconds=0) as client:
                await client.server_version()
                return
        except (BadRequest, Unavailable) as error:
            if loop.time() >= deadline:
                raise
            if not reported:
                click.echo(f"{error}; waiting up to {START_SECONDS:.0f} s for the server to start", err=True)
                reported = True
        await asyncio.sleep(0.2)


def _once_per_warning() -> Callable[[str], None]:
    """Return a function that prints each warning once, as kubectl does."""
    printed: set[str] = set()

    def warn(text: str) -> None:
        if text not in printed:
            printed.add(text)
            click.echo(f"Warning: {text}", err=True)

    return warn


OTHER_LISTS = {
    "rollout": "for rollouts: `rollyard rollouts list` and `rollyard rollouts describe ID`",
    "batch": "for batches: `rollyard batches list` and `rollyard batches describe ID`",
    "eval": "for evaluations: `rollyard eval list` and `rollyard eval show NAME`",
    "dataset": "for datasets: `rollyard datasets list`",
    "training": "for trainings: `rollyard batches list` and `rollyard batches steps SERIES --series`",
}
"""Part of the name of something that is no object -> the commands that show it."""


def kinds_of(word: str) -> list[type[KindObject]]:
    """Parse `KIND` or `KIND,KIND...`. Raises UsageError for an unknown kind, or if there is none."""
    found = []
    for name in filter(None, word.split(",")):
        kind = find_kind(name)
        if kind is None:
            known = ", ".join("/".join([k.PLURAL, *k.SHORT]) for k in KINDS.values())
            hint = next((text for word, text in OTHER_LISTS.items() if word in name.lower()), None)
            hint = f"; {hint or f'name an object as KIND/NAME, such as rp/{name}'}"
            raise click.UsageError(f"there is no resource {name!r}; the server has {known}{hint}")
        found.append(kind)
    if not found:
        raise click.UsageError("name a kind, such as rolloutpools")
    return found


def named(words: tuple[str, ...], namespace: str) -> list[ObjectKey]:
    """Parse `KIND NAME...` or `KIND/NAME...`. Raises UsageError if there is no name, because a command on no object
    would do nothing."""
    if keys := kind_and_names(words, namespace)[1]:
        return keys
    raise click.UsageError("name an object: KIND NAME or KIND/NAME")


def kind_and_names(words: tuple[str, ...], namespace: str) -> tuple[type[KindObject], list[ObjectKey]]:
    """Parse `KIND`, `KIND NAME...` or `KIND/NAME...`.

    Raises UsageError for an unknown kind and for several kinds. Also raises it if only some words are KIND/NAME, or if
    they name different kinds.
    """
    first, *rest = words
    kind_word, slash, name = first.partition("/")
    kind, *more = kinds_of(kind_word)
    if more:
        raise click.UsageError("name one kind; only `rollyard get ip,rp` accepts several")
    if slash:
        for other in rest:
            if find_kind(other.partition("/")[0] if "/" in other else "") is not kind:
                raise click.UsageError(f"write each name as {kind_word}/NAME, of this one kind, not {other!r}")
    elif with_kind := [other for other in rest if "/" in other]:
        raise click.UsageError(f"write each name after {kind_word} without a kind, not {with_kind[0]!r}")
    names = [name, *(w.partition("/")[2] for w in rest)] if slash else rest
    word = kind.model_fields["kind"].default
    return kind, [ObjectKey(kind=word, namespace=namespace, name=n) for n in names if n]
