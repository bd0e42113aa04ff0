"""`rollyard images prune`: deletes images that nobody uses from the cache of this node, or from the shared folder.

All but built images can be had again, so they are deleted without a question. A built image stays while the server has an
unfinished rollout or a running batch that names it, or a pool whose default image it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollyard.cli.needed_images import NeededImages
from rollyard.cli.parameter_types import DURATION, FOLDER, SIZE

if TYPE_CHECKING:
    from rollyard.kinds.values.image_reference import BuiltImage


@click.command()
@click.option(
    "--older-than", "seconds", type=DURATION, metavar="AGE", help="delete what nobody has used for this time: 12h, 30d"
)
@click.option(
    "--max-size",
    "limit",
    type=SIZE,
    metavar="SIZE",
    help="then delete the least recently used until the rest is smaller: 200G",
)
@click.option("--shared", type=FOLDER, help="a pool's `sandbox.images.sharedFolder`, not this node")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="admin.kubeconfig of the server that is asked which built images rollouts need",
)
def prune(seconds: float | None, limit: int | None, shared: Path | None, kubeconfig: Path | None) -> None:
    """Delete images of this node's cache, or of the shared folder. What sandboxes use, what a node may be reading, and the
    built images that rollouts need stay."""
    if seconds is None and limit is None:
        raise click.UsageError("say what to delete: --older-than 30d, --max-size 200G, or both")
    needed = NeededImages(kubeconfig)
    if shared is None:
        freed, left = asyncio.run(_prune_cache(seconds, limit, needed))
    else:
        freed, left = _prune_shared(shared, seconds, limit, needed)
    click.echo(f"freed {freed >> 20}M")
    for name in sorted(needed.spared):
        click.echo(f"{name} stays: {needed.why}", err=True)
    if limit is not None and left > limit:
        click.echo(f"{left >> 20}M are left, which are in use", err=True)


async def _prune_cache(
    seconds: float | None, limit: int | None, needed: Callable[[BuiltImage], bool]
) -> tuple[int, int]:
    from rollyard.host.node_cache import node_cache
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.cache import ImageCache
    from rollyard.images.settings import CacheSettings

    folder = node_cache() / "image-cache"
    settings = CacheSettings() if limit is None else CacheSettings(cache_bytes=limit)
    cache = ImageCache(folder, settings)
    built = BuiltImages(folder, lambda image: cache.is_pinned(image) or needed(image))

    def left() -> int:
        return cache.room.image_bytes() + built.bytes()

    freed = 0
    if seconds is not None:
        freed = await cache.room.prune(time.time() - seconds) + await asyncio.to_thread(built.prune, seconds)
    if limit is not None:
        freed += await cache.room.shrink(built.bytes())
        freed += await asyncio.to_thread(built.shrink, left() - limit)
    return freed, left()


def _prune_shared(
    folder: Path, seconds: float | None, limit: int | None, needed: Callable[[BuiltImage], bool]
) -> tuple[int, int]:
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.shared_tier import SharedTier

    tier, built = SharedTier(folder), BuiltImages(folder, needed)

    freed = 0 if seconds is None else tier.prune(seconds) + built.prune(seconds)
    if limit is not None:
        freed += tier.shrink(limit - built.bytes())
        freed += built.shrink(tier.bytes() + built.bytes() - limit)
    return freed, tier.bytes() + built.bytes()
