"""Built images that tests store without a build."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollyard.images.built_images import BuiltImages
from rollyard.images.oci_manifest import MANIFEST_TYPES, machine
from rollyard.kinds.values.image_reference import BuiltImage
from tests.support.image_registry import BASE, OCI_LAYER, digest, gz, tar


def stored(folder: Path, name: str, tag: str, hours: float, base: bytes = b"") -> Path:
    """Put a small image into a cache or a shared folder, last used so many hours ago. Return the path of its manifest. `base`:
    content of a file in a layer below its own."""
    image = BuiltImage(name, tag)
    layers = [BASE, gz(tar(("base", base))), gz(tar(("big", os.urandom(1 << 20))))]
    with ThreadPoolExecutor(1) as thread:  # the caller's may have a loop that runs
        thread.submit(asyncio.run, _store(folder, image, layers)).result()
    path = Path(image.manifest(str(folder)))
    os.utime(path, (time.time() - hours * 3600,) * 2)
    return path


async def _store(folder: Path, image: BuiltImage, layers: list[bytes]) -> None:
    images = BuiltImages(folder)
    async with images.writing():
        for layer in layers:
            with tempfile.NamedTemporaryFile() as file:
                file.write(layer)
                file.flush()
                images.add_layer(digest(layer), len(layer), Path(file.name))
        images.add_image(image, *manifest_and_config(layers))


def manifest_and_config(layers: list[bytes]) -> tuple[bytes, bytes]:
    rootfs = {"type": "layers", "diff_ids": [digest(gzip.decompress(layer)) for layer in layers]}
    config = json.dumps({"architecture": machine(), "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    listed = [{"mediaType": OCI_LAYER, "digest": digest(layer), "size": len(layer)} for layer in layers]
    described = {"digest": digest(config), "size": len(config)}
    whole = {"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "config": described, "layers": listed}
    return json.dumps(whole).encode(), config
