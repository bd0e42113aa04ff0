"""Settings of a node's cache of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CacheSettings:
    """How large a cache gets, and what it needs to fill itself. As `sandbox.images` of a RolloutPool."""

    cache_bytes: int = 40 << 30
    """Greatest size of the cache. The images that no sandbox uses are deleted first, the least recently used one before the
    others."""
    shared_folder: str | None = None
    """Folder that all nodes see: one node pulls an image into it, and the others read it from there."""
    credentials_file: str | None = None
    """File with the credentials of private registries, in the format of docker's config.json."""
    insecure_registries: Sequence[str] = ()
    """Registries, as HOST or HOST:PORT, that are asked by plain HTTP. localhost always is."""
