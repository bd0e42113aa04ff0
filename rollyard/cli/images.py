"""`rollyard images`: the sandbox images of this node's cache, and of the folder that all nodes share."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rollyard.cli.image_build import build, build_many
from rollyard.cli.image_delete import delete
from rollyard.cli.image_prune import prune
from rollyard.cli.image_pull import pull
from rollyard.cli.output import align
from rollyard.cli.parameter_types import FOLDER


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly
                raise
            place = f"{error.filename} " if error.filename is not None else "the folder "
            raise click.ClickException(f"{place}cannot be used: {error.strerror or error}") from error


@click.group(cls=_Group)
def images() -> None:
    """Build, list, pull or delete sandbox images of this node, or of a shared folder."""


images.add_command(build)
images.add_command(build_many)
images.add_command(delete)
images.add_command(prune)
images.add_command(pull)


@images.command("list")
@click.option("--shared", type=FOLDER, help="a pool's `sandbox.images.sharedFolder`, not this node")
def list_(shared: Path | None) -> None:
    """List images, the least recently used one first; then the archives of built images."""
    from rollyard.host.node_cache import node_cache
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.cache import ImageCache
    from rollyard.images.shared_tier import SharedTier
    from rollyard.kinds.schema.columns import age
    from rollyard.kinds.values.image_reference import parse_image

    now = datetime.now(UTC)
    if shared is None:
        folder = node_cache() / "image-cache"
        cache = ImageCache(folder)
        rows = [["NAME", "DIGEST", "SIZE", "IN USE", "LAST USED"]]
        for entry in cache.entries():
            used = datetime.fromtimestamp(entry.last_used, UTC)
            in_use = "yes" if entry.pinned else "no"
            older = entry.name.startswith("built:") and cache.known(parse_image(entry.name)) != entry.digest
            name = f"{entry.name} (older build)" if older else entry.name
            rows.append([name, entry.digest[:19], megabytes(entry.bytes), in_use, age(used, now)])
        for one in BuiltImages(folder).archives():
            used, in_use = datetime.fromtimestamp(one.last_used, UTC), "yes" if cache.is_pinned(one.image) else "no"
            rows.append([one.image.text, "archive", megabytes(one.bytes), in_use, age(used, now)])
    else:
        rows = [["NAME", "DIGEST", "SIZE", "LAST USED"]]
        for file in SharedTier(shared).files():
            used = datetime.fromtimestamp(file.last_used, UTC)
            rows.append([file.name or "-", file.digest[:19], megabytes(file.bytes), age(used, now)])
        for one in BuiltImages(shared).archives():
            used = datetime.fromtimestamp(one.last_used, UTC)
            rows.append([one.image.text, "archive", megabytes(one.bytes), age(used, now)])
    click.echo("\n".join(align(rows)))


def megabytes(count: int) -> str:
    """Return a number of bytes in MiB, rounded up, in the unit of `cacheSize`."""
    return f"{-(-count >> 20)}M"
