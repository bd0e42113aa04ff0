"""Finds the source of an image by the form of its name."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.images.blob_store import BlobStore
from rollyard.images.built_images import BuiltImages
from rollyard.images.image_source import ImageSource
from rollyard.images.layout_source import LayoutSource, place_of, place_of_built
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
        """`folder`: the node's cache, which also has this machine's built images."""
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
                folder = self._folder_of(image)
                missing = "" if os.path.exists(image.manifest(folder)) else self._missing(image)
                return LayoutSource(place_of_built(image, Path(folder), missing), self._blobs, self._resolved)
            case LayoutImage():
                return LayoutSource(place_of(image), self._blobs, self._resolved)
            case PathImage(kind="sif" | "squashfs"):
                return SquashfsSource(image, self._resolved, self._settings.cache_bytes)
            case PathImage(kind="folder"):
                raise ImageNotFound(f"{image.text} is a folder: it is used where it is, and not copied")
        name = f" {image.text}" if image.kind == "def" else ""
        raise ImageNotFound(
            f"{image.text} is a recipe: build the image once with `rollyard images build{name}`, and name the image"
        )

    def manifest(self, image: BuiltImage) -> Path:
        """Return the path of a built image's manifest: in the shared folder, or else of this machine."""
        return Path(image.manifest(self._folder_of(image)))

    def _folder_of(self, image: BuiltImage) -> str:
        shared = self._settings.shared_folder
        return shared if shared and os.path.exists(image.manifest(shared)) else os.fspath(self._folder)

    def tier(self) -> SharedTier | None:
        """Return the shared tier, if the pool has one that can be used now. The call takes as long as the file system does."""
        if self._settings.shared_folder is None:
            return None
        try:
            return SharedTier(Path(self._settings.shared_folder))
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", self._settings.shared_folder, error.strerror)
            return None

    def _missing(self, image: BuiltImage) -> str:
        """Return a sentence about an image that is in none of the folders."""
        shared = self._settings.shared_folder
        folders = [self._folder] if shared is None else [Path(shared), self._folder]
        for older in (folder / "built" / image.name / f"{image.tag}.tar" for folder in folders):
            if older.exists():
                return f"{older} is of an older version: build the image again, or name this file, oci-archive:{older}"
        names = {one.image for folder in folders for one in BuiltImages(folder).images()}
        others = sorted(one.text for one in names if one.name == image.name)[:MOST_TAGS]
        only = f", only {', '.join(others)}" if others else ""
        return (
            f"no image with this name is here{only}: `rollyard images build --tag {image.name}:{image.tag}` makes it for "
            "this machine, with --shared FOLDER for all nodes of a pool with this sharedFolder"
        )

    def _shared_names(self) -> ResolvedTags | None:
        tier = self.tier()
        return ResolvedTags(tier.names) if tier is not None else None
