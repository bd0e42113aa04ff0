"""`rollyard images delete`: deletes single images from the cache of this node, or from the shared folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollyard.cli.needed_images import NeededImages
from rollyard.core.errors import BadRequest

if TYPE_CHECKING:
    from rollyard.kinds.values.image_reference import BuiltImage


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--shared", type=click.Path(path_type=Path), help="a pool's `sandbox.images.sharedFolder`, not this node")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="admin.kubeconfig of the server that is asked which built images rollouts need",
)
def delete(names: tuple[str, ...], shared: Path | None, kubeconfig: Path | None) -> None:
    """Delete images by the names or digests that `list` shows, from this node's cache or from the shared folder. What
    sandboxes use, and the built images that rollouts need stay. Exit code 1: at least one image stays, or is not there."""
    if shared is not None and not shared.is_dir():
        raise click.UsageError(f"--shared: there is no folder {shared}")
    needed, failed = NeededImages(kubeconfig), False
    for name in dict.fromkeys(names):
        wanted = name if name.startswith("sha256:") else _normal(name)
        found, freed = (
            asyncio.run(_delete_cached(wanted, needed)) if shared is None else _delete_shared(shared, wanted, needed)
        )
        if not found:
            click.echo(f"error: there is no {name}; `rollyard images list` shows names and digests", err=True)
        elif wanted in needed.spared:
            click.echo(f"error: {name} stays: {needed.why}", err=True)
        elif freed is None:
            click.echo(f"error: {name} stays: it is in use", err=True)
        else:
            click.echo(f"{name} deleted, freed {freed >> 20}M")
            continue
        failed = True
    if failed:
        sys.exit(1)


def _normal(name: str) -> str:
    from rollyard.kinds.values.image_reference import parse_image

    try:
        return parse_image(name).text
    except ValueError as error:
        raise BadRequest(str(error)) from None


async def _delete_cached(name: str, needed: Callable[[BuiltImage], bool]) -> tuple[bool, int | None]:
    """Return whether the image was there, and the number of freed bytes; None if it stays."""
    from rollyard.host.node_cache import node_cache
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.cache import ImageCache

    folder = node_cache() / "image-cache"
    cache = ImageCache(folder)
    built = BuiltImages(folder, lambda image: cache.is_pinned(image) or needed(image))
    found = [one for one in cache.entries() if _is_meant(name, one.name, one.digest)]
    stored = [one for one in built.images() if one.image.text == name]
    deleted, freed = await asyncio.to_thread(built.delete, stored)
    if len(deleted) < len(stored):
        return True, None
    entries = await cache.room.delete(found)
    if found and not entries:
        return True, None
    return bool(found or stored), freed + entries


def _delete_shared(folder: Path, name: str, needed: Callable[[BuiltImage], bool]) -> tuple[bool, int | None]:
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.shared_tier import SharedTier

    tier, built = SharedTier(folder), BuiltImages(folder, needed)
    found = [one for one in tier.images() if _is_meant(name, one.name, one.digest)]
    stored = [one for one in built.images() if one.image.text == name]
    deleted, freed = built.delete(stored)
    if len(deleted) < len(stored):
        return True, None
    return bool(found or stored), freed + tier.delete(found)


def _is_meant(wanted: str, name: str | None, digest: str) -> bool:
    return digest.startswith(wanted) if wanted.startswith("sha256:") else name == wanted
