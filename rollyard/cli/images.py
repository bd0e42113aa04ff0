"""`rollyard images`: the sandbox images of this node's cache, and of the folder that all nodes share."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollyard.cli.image_build import build, build_many
from rollyard.cli.image_delete import delete
from rollyard.cli.image_prune import prune
from rollyard.cli.image_pull import pull
from rollyard.cli.output import align
from rollyard.cli.parameter_types import FOLDER

if TYPE_CHECKING:
    from rollyard.images.built_images import BuiltEntry


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
    """List images, the least recently used one first; then the built images as they are stored."""
    from rollyard.host.node_cache import node_cache
    from rollyard.images.built_images import BuiltImages
    from rollyard.images.cache import ImageCache
    from rollyard.images.shared_tier import SharedTier
    from rollyard.kinds.values.image_reference import parse_image

    if shared is None:
        folder = node_cache() / "image-cache"
        cache = ImageCache(folder)
        rows = [["NAME", "DIGEST", "SIZE", "SHARED", "IN USE", "LAST USED"]]
        for entry in cache.entries():
            in_use = "yes" if entry.pinned else "no"
            older = entry.name.startswith("built:") and cache.known(parse_image(entry.name)) != entry.digest
            name = f"{entry.name} (older build)" if older else entry.name
            sizes = [megabytes(entry.own_bytes), megabytes(entry.shared_bytes)]
            rows.append([name, entry.digest[:19], *sizes, in_use, _age(entry.last_used)])
        rows += [
            [*_stored(one), "yes" if cache.is_pinned(one.image) else "no", _age(one.last_used)]
            for one in BuiltImages(folder).images()
        ]
    else:
        rows = [["NAME", "DIGEST", "SIZE", "SHARED", "LAST USED"]]
        for one in SharedTier(shared).images():
            sizes = [megabytes(one.own_bytes), megabytes(one.shared_bytes)]
            rows.append([one.name or "-", one.digest[:19], *sizes, _age(one.last_used)])
        rows += [[*_stored(one), _age(one.last_used)] for one in BuiltImages(shared).images()]
    click.echo("\n".join(align(rows)))


def _stored(one: BuiltEntry) -> list[str]:
    """Return name, kind and sizes of a built image: what its deletion frees, and what other images have too."""
    return [one.image.text, "built", megabytes(one.own_bytes), megabytes(one.shared_bytes)]


def _age(when: float) -> str:
    from rollyard.kinds.schema.columns import age

    return age(datetime.fromtimestamp(when, UTC), datetime.now(UTC))


def megabytes(count: int) -> str:
    """Return a number of bytes in MiB, rounded up, in the unit of `cacheSize`."""
    return f"{-(-count >> 20)}M"
