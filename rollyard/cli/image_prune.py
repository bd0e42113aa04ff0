"""`rollyard images prune`: deletes images that nobody uses from the cache of this node, or from the shared folder."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import click

_AGE = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.command()
@click.option("--older-than", metavar="AGE", help="delete what nobody has used for this time: 12h, 30d")
@click.option("--max-size", metavar="SIZE", help="then delete the least recently used until the rest is smaller: 200G")
@click.option("--shared", type=click.Path(path_type=Path), help="a pool's `sandbox.images.sharedFolder`, not this node")
def prune(older_than: str | None, max_size: str | None, shared: Path | None) -> None:
    """Delete images of this node's cache, or of the shared folder. What sandboxes use, and what a node may be reading,
    stays."""
    from rollyard.kinds.values.quantity import size_bytes

    if older_than is None and max_size is None:
        raise click.UsageError("say what to delete: --older-than 30d, --max-size 200G, or both")
    age = None if older_than is None else _AGE.fullmatch(older_than)
    if older_than is not None and age is None:
        raise click.UsageError("--older-than: write an age such as 90m, 12h or 30d")
    try:
        limit = None if max_size is None else size_bytes(max_size)
    except ValueError as error:
        raise click.UsageError(f"--max-size: {error}") from None
    seconds = None if age is None else int(age[1]) * _SECONDS[age[2]]
    if shared is None:
        freed, left = asyncio.run(_prune_cache(seconds, max_size))
    else:
        freed, left = _prune_shared(shared, seconds, limit)
    click.echo(f"freed {freed >> 20}M")
    if limit is not None and left > limit:
        click.echo(f"{left >> 20}M are left, which are in use", err=True)


async def _prune_cache(seconds: float | None, max_size: str | None) -> tuple[int, int]:
    from rollyard.core.node_cache import node_cache
    from rollyard.kinds.sandbox_template import SandboxImages
    from rollyard.node.images.cache import ImageCache

    settings = SandboxImages() if max_size is None else SandboxImages(cache_size=max_size)
    cache = ImageCache(node_cache() / "image-cache", settings)
    freed = 0 if seconds is None else await cache.prune(seconds, time.time())
    if max_size is not None:
        freed += await cache.shrink()
    return freed, sum(entry.bytes for entry in cache.entries())


def _prune_shared(folder: Path, seconds: float | None, limit: int | None) -> tuple[int, int]:
    from rollyard.node.images.shared_tier import SharedTier

    if not folder.is_dir():
        raise click.UsageError(f"--shared: there is no folder {folder}")
    tier = SharedTier(folder)
    freed = 0 if seconds is None else tier.prune(seconds)
    if limit is not None:
        freed += tier.shrink(limit)
    return freed, sum(file.bytes for file in tier.files())
