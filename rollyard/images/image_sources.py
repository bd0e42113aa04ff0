"""Finds the source of an image by the form of its name."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.images.base import ImageSource
from rollyard.images.blob_store import BlobStore
from rollyard.images.built_images import BuiltImages
from rollyard.images.layout_source import LayoutSource
from rollyard.images.registry_health import RegistryHealth
from rollyard.images.registry_source import RegistrySource
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.settings import CacheSettings
from rollyard.images.shared_tier import SharedTier
from rollyard.images.squashfs_source import SquashfsSource
from rollyard.kinds.values.image_reference import BuiltImage, ImageReference, LayoutImage, PathImage, RegistryImage

log = logging.getLogger(__name__)

MOST_TAGS = 10
"""Greatest number of names that a sentence about a missing built image lists."""


class ImageSources:
    def __init__(self, folder: Path, settings: CacheSettings, blobs: BlobStore, resolved: ResolvedTags) -> None:
        """`folder`: the node's cache, which also has the archives of built images."""
        self._folder = folder
        self._settings = settings
        self._blobs = blobs
        self._resolved = resolved
        self._registries = RegistryHealth()

    def of(self, image: ImageReference) -> ImageSource:
        """Return the source of an image. Raises ImageNotFound for a folder, which is used where it is, and for a recipe."""
        match image:
            case RegistryImage():
                return RegistrySource(
                    image, self._settings, self._blobs, self._resolved, self._shared_names, self._registries
                )
            case BuiltImage():
                path = self.archive(image)
                others = [] if os.path.exists(path) else self._other_tags(image)
                archive = LayoutImage("oci-archive", path, None)
                return LayoutSource(archive, self._blobs, self._resolved, image, others[:MOST_TAGS])
            case LayoutImage():
                return LayoutSource(image, self._blobs, self._resolved)
            case PathImage(kind="sif" | "squashfs"):
                return SquashfsSource(image, self._resolved, self._settings.cache_bytes)
            case PathImage(kind="folder"):
                raise ImageNotFound(f"{image.text} is a folder: it is used where it is, and not copied")
        name = f" {image.text}" if image.kind == "def" else ""
        raise ImageNotFound(
            f"{image.text} is a recipe: build the image once with `rollyard images build{name}`, and name the image"
        )

    def archive(self, image: BuiltImage) -> str:
        """Return the path of a built image: in the shared folder, or else of this machine."""
        shared = self._settings.shared_folder
        path = "" if shared is None else image.archive(shared)
        return path if os.path.exists(path) else image.archive(os.fspath(self._folder))

    def tier(self) -> SharedTier | None:
        """Return the shared tier, if the pool has one that can be used now. The call takes as long as the file system does."""
        if self._settings.shared_folder is None:
            return None
        try:
            return SharedTier(Path(self._settings.shared_folder))
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", self._settings.shared_folder, error.strerror)
            return None

    def _other_tags(self, image: BuiltImage) -> list[str]:
        shared = self._settings.shared_folder
        folders = [self._folder] if shared is None else [Path(shared), self._folder]
        names = (one.image for folder in folders for one in BuiltImages(folder).archives())
        return sorted({one.text for one in names if one.name == image.name})

    def _shared_names(self) -> ResolvedTags | None:
        tier = self.tier()
        return ResolvedTags(tier.names) if tier is not None else None
