"""Options and arguments that several commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import click

from rollyard.client.client import AsyncClient
from rollyard.kinds.base import KindObject, ObjectKey
from rollyard.kinds.registry import KINDS, find_kind

Run = Callable[..., Coroutine[Any, Any, None]]


def with_client(command: Run) -> Callable[..., None]:
    """A command that gets a client first, and --kubeconfig and --namespace with it."""

    @click.option("--kubeconfig", type=click.Path(path_type=Path), help="the server's admin.kubeconfig")
    @click.option("-n", "--namespace", help="namespace; the kubeconfig's when left out")
    @wraps(command)
    def run(kubeconfig: Path | None, namespace: str | None, **arguments: Any) -> None:
        async def body() -> None:
            async with AsyncClient(kubeconfig=kubeconfig, warn=_warner()) as client:
                await command(client, namespace or client.context.namespace, **arguments)

        asyncio.run(body())

    return run


def _warner() -> Callable[[str], None]:
    """Says each warning once, as kubectl does."""
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            said.add(text)
            click.echo(f"Warning: {text}", err=True)

    return warn


def kind_and_names(words: tuple[str, ...], namespace: str) -> tuple[type[KindObject], list[ObjectKey]]:
    """`KIND`, `KIND NAME...` or `KIND/NAME...`. Raises UsageError for a kind there is not."""
    first, *rest = words
    kind_word, slash, name = first.partition("/")
    kind = find_kind(kind_word)
    if kind is None:
        known = ", ".join(k.PLURAL for k in KINDS.values())
        raise click.UsageError(f"the server has no resource {kind_word!r}; it has {known}")
    names = [name, *(w.partition("/")[2] for w in rest)] if slash else rest
    word = kind.model_fields["kind"].default
    return kind, [ObjectKey(kind=word, namespace=namespace, name=n) for n in names if n]
