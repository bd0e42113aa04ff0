"""Makes the root file system of an image whose manifest is known."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rollyard.images.base import FillRoom, ImageConfig, too_big
from rollyard.images.blob_store import BlobOrigin, BlobStore
from rollyard.images.oci_manifest import BadManifest, Manifest, parse_json, read_config
from rollyard.images.unpack import BrokenLayer, unpack_layers


async def fill_from_blobs(
    name: str, manifest: Manifest, origin: BlobOrigin, blobs: BlobStore, folder: Path, room: FillRoom
) -> ImageConfig:
    """Fetch the blobs that are missing, and unpack the layers into `root` in `folder`. Raises ImageUnavailable, DiskFull and
    BadManifest."""
    if sum(layer.size for layer in manifest.layers) > room.limit_bytes:  # before anything is downloaded
        raise too_big(name, room.limit_bytes)
    with ExitStack() as pins:
        await blobs.fetch(origin, [manifest.config], pins)
        config = read_config(parse_json(blobs.read(manifest.config.digest) or b""))
        layers = await blobs.fetch(origin, manifest.layers, pins)
        try:
            await unpack_layers(name, layers, folder / "root", room)
        except BrokenLayer as error:
            broken = manifest.layers[error.number].digest
            raise BadManifest(
                f"its layer {broken} cannot be unpacked, {error}: build and push the image again"
            ) from None
    return config
