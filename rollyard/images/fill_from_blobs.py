"""Makes the root file system of an image whose manifest is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rollyard.images.base import FillRoom, too_big
from rollyard.images.blob_store import BlobOrigin, BlobStore
from rollyard.images.image_source import FilledImage, LayerFile
from rollyard.images.oci_manifest import BadManifest, Manifest, parse_json, read_config, strings
from rollyard.images.unpack import BrokenLayer, unpack_layers
from rollyard.images.unpacked_layers import HeldLayers, UnpackedLayer, layer_names


async def fill_from_blobs(
    name: str,
    manifest: Manifest,
    origin: BlobOrigin,
    blobs: BlobStore,
    folder: Path,
    room: FillRoom,
    layers: HeldLayers,
) -> FilledImage:
    """Fetch the blobs that are missing, and complete the image's `layers`. An image without layers gets an empty `root` in
    `folder`. Raises ImageUnavailable, DiskFull and BadManifest."""
    if sum(layer.size for layer in manifest.layers) > room.limit_bytes:  # before anything is downloaded
        raise too_big(name, room.limit_bytes)
    digests = [layer.digest for layer in manifest.layers]
    with ExitStack() as pins:

        async def fetch(numbers: Sequence[int]) -> Sequence[Path]:
            return await blobs.fetch(origin, [manifest.layers[number] for number in numbers], pins)

        await blobs.fetch(origin, [manifest.config], pins)
        config = read_config(parse_json(blobs.read(manifest.config.digest) or b""))
        complete = list[UnpackedLayer]()
        try:
            if digests:
                complete = await layers.complete(name, layer_names(digests), fetch, room)
            else:
                await unpack_layers(name, [], folder / "root", room)
        except BrokenLayer as error:
            raise BadManifest(
                f"its layer {digests[error.number]} cannot be unpacked, {error}: build and push the image again"
            ) from None
    return FilledImage(config, complete)


async def fetch_layers(
    manifest: Manifest, origin: BlobOrigin, blobs: BlobStore, pins: ExitStack
) -> Sequence[LayerFile]:
    """Return the files of an image's layers, fetched where necessary, and keep them until `pins` is closed; none if its
    configuration does not name them. Raises ImageUnavailable, DiskFull and BadManifest."""
    await blobs.fetch(origin, [manifest.config], pins)
    rootfs = parse_json(blobs.read(manifest.config.digest) or b"").get("rootfs")
    diff_ids = strings(rootfs if isinstance(rootfs, dict) else {}, "diff_ids")
    if len(diff_ids) != len(manifest.layers):
        return []
    files = await blobs.fetch(origin, manifest.layers, pins)
    digests = (layer.digest for layer in manifest.layers)
    return [LayerFile(*one) for one in zip(digests, diff_ids, files, strict=True)]
