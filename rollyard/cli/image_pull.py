"""`rollyard images pull`: fills the cache of this node, or the shared folder, before rollouts need the images."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollyard.cli.parameter_types import SIZE
from rollyard.core.errors import ImageUnavailable, SandboxError

if TYPE_CHECKING:
    from rollyard.images.cache import ImageCache


@click.command()
@click.argument("names", nargs=-1)
@click.option("-f", "--file", help="file with the names of images, one a line; - is standard input")
@click.option(
    "--shared", type=click.Path(path_type=Path), help="fill a pool's `sandbox.images.sharedFolder`, not this node"
)
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="pulls at the same time")
@click.option("--credentials-file", type=click.Path(path_type=Path), help="credentials of registries, mode 0600")
@click.option("--insecure-registry", multiple=True, metavar="HOST", help="registry that is asked by plain HTTP")
@click.option(
    "--cache-size",
    type=SIZE,
    default="40G",
    show_default=True,
    help="bound of this node's cache, as the pool's `cacheSize`",
)
def pull(
    names: tuple[str, ...],
    file: str | None,
    shared: Path | None,
    at_once: int,
    credentials_file: Path | None,
    insecure_registry: tuple[str, ...],
    cache_size: int,
) -> None:
    """Pull images into this node's cache, or with --shared into the shared folder. Exit code 1: at least one image could
    not be had; the errors say why."""
    from rollyard.host.node_cache import node_cache
    from rollyard.images.cache import ImageCache
    from rollyard.images.settings import CacheSettings

    wanted = list(dict.fromkeys([*names, *_lines(file)]))
    if not wanted:
        raise click.UsageError("name an image, such as docker://python:3.13-slim, or a file of names with --file")
    settings = CacheSettings(
        cache_bytes=cache_size,
        shared_folder=None if shared is None else str(shared.resolve()),
        credentials_file=None if credentials_file is None else str(credentials_file.resolve()),
        insecure_registries=insecure_registry,
    )
    folder = "image-cache" if shared is None else "image-shares"  # the latter is emptied when an image is shared
    failed = asyncio.run(
        _pull_all(ImageCache(node_cache() / folder, settings), wanted, at_once, shared=shared is not None)
    )
    if failed:
        click.echo(f"error: {failed} of {len(wanted)} images could not be had", err=True)
        sys.exit(1)


def _lines(file: str | None) -> Iterator[str]:
    from rollyard.cli.text_files import read_text

    if file is not None:
        for line in read_text(file).splitlines():
            if (name := line.partition("#")[0].strip()) != "":
                yield name


async def _pull_all(cache: ImageCache, wanted: Sequence[str], at_once: int, *, shared: bool) -> int:
    """Return the number of images that failed."""
    places, failed = asyncio.Semaphore(at_once), 0
    with _progress(len(wanted)) as advance:

        async def one(name: str) -> None:
            nonlocal failed
            async with places:
                try:
                    advance(await _pull(cache, name, shared=shared))
                except SandboxError as error:
                    failed += 1
                    advance(f"error: {error}")

        try:
            await asyncio.gather(*(one(name) for name in wanted))
        finally:
            await cache.close()
            if shared:
                await cache.room.prune(float("inf"))
    return failed


async def _pull(cache: ImageCache, name: str, *, shared: bool) -> str:
    """Return a sentence that says what was done. Raises ImageNotFound and ImageUnavailable."""
    from rollyard.images.named_image import named_image
    from rollyard.kinds.values.image_reference import PathImage

    image = named_image(name)
    if shared:
        pulled = await cache.share(image)
        await cache.room.prune(float("inf"))
    elif isinstance(image, PathImage) and image.kind == "folder":
        if not await asyncio.to_thread(os.path.isdir, image.path):
            raise ImageUnavailable(image.text, "there is no such folder: make it, or correct the name", permanent=True)
        return f"{image.text} is a folder, which sandboxes use where it is"
    else:
        pulled = not cache.has(image)
        await cache.prefetch(image)
    return f"{image.text} {'pulled' if pulled else 'is there'}"


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line for a finished image, above a bar if this is a terminal."""
    if not sys.stderr.isatty():
        yield lambda line: click.echo(line, err=line.startswith("error:"))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("pulling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    from rich.console import Console

    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)

        def advance(line: str) -> None:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            bar.advance(task)

        yield advance
