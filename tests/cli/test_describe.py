"""Lines of `rollyard describe`."""

from __future__ import annotations

from rollyard.cli.describe import stored_images
from rollyard.kinds.top import ImageStorageTop


def test_what_shared_layers_save_is_told() -> None:
    stored = ImageStorageTop(images=6, layers=12, bytes=1 << 30, unshared_bytes=5 << 30)
    told = "6 of 12 layers in the caches of its nodes: 1 GiB, and 5 GiB if none shared a layer"
    assert stored_images(stored) == told
    full = stored.model_copy(update={"evicted_layers": 3, "evicted_bytes": 3 << 20})
    assert stored_images(full) == f"{told}; evicted: 3 layers, 3 MiB"
