"""Images of registries, as a source of the cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import FillRoom
from rollyard.images.blob_store import BlobStore
from rollyard.images.fill_from_blobs import fetch_layers, fill_from_blobs
from rollyard.images.image_source import FilledImage, LayerFile
from rollyard.images.oci_manifest import (
    BadManifest,
    Manifest,
    ManifestSearch,
    parse_json,
    read_config,
    read_manifest,
)
from rollyard.images.registry_client import RegistryClient
from rollyard.images.registry_health import RegistryHealth
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.settings import CacheSettings
from rollyard.images.shared_lease import shared_lease
from rollyard.images.unpacked_layers import HeldLayers
from rollyard.kinds.values.image_reference import RegistryImage

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Seconds for which a registry may take to look up a tag whose last digest is known."""
AGAIN_SECONDS = 30.0
"""Seconds after which a tag is looked up again that could not be."""


class RegistrySource:
    shared = True

    def __init__(
        self,
        image: RegistryImage,
        settings: CacheSettings,
        blobs: BlobStore,
        resolved: ResolvedTags,
        shared_names: Callable[[], ResolvedTags | None],
        health: RegistryHealth | None = None,
    ) -> None:
        """`shared_names`: function that returns what all nodes know about tags, if there is a shared tier. It is not called for
        an image whose digest this node knows: the tier's file system may be slow."""
        self._image = image
        self._settings = settings
        self._blobs = blobs
        self._resolved = resolved
        self._shared_names = shared_names
        self._health = health
        self._digest = ""

    @property
    def name(self) -> str:
        return self._image.text

    async def key(self) -> str:
        """Return the digest of the manifest for this machine. If the registry cannot be asked, the last known digest of a
        tag is used."""
        if (known := self._known(self._resolved)) is not None:
            self._digest = known
            return known
        last = self._resolved.find(self.name)
        try:
            async with asyncio.timeout(ASK_SECONDS if last is not None else None):
                self._digest = await self._ask()
        except (ImageUnavailable, TimeoutError) as error:
            if last is None:
                raise
            log.warning(
                "%s; the last known digest is used: %s", str(error) or f"{self.name} is not answered", last.digest
            )
            self._digest = last.digest
            self._resolved.keep(self.name, last.digest, seconds=AGAIN_SECONDS)
        else:
            self._resolved.keep(self.name, self._digest)
        return self._digest

    def known(self) -> str | None:
        return self._known(self._resolved)

    def _known(self, names: ResolvedTags) -> str | None:
        found = names.find(self.name)
        return found.digest if found is not None and found.fresh(self._image) else None

    async def _ask(self) -> str:
        """Ask the other nodes, then the registry. One node at a time asks the registry."""
        names = await asyncio.to_thread(self._shared_names)
        if names is None:
            return await self._resolve()
        try:
            lease = names.path(self.name).with_suffix(".lease")
            async with shared_lease(lease, lambda: self._known(names) is not None):
                if (known := self._known(names)) is not None:
                    return known
                digest = await self._resolve()
                names.keep(self.name, digest)
                return digest
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", lease.parent, error.strerror)
            return await self._resolve()

    async def fill(self, folder: Path, room: FillRoom, layers: HeldLayers) -> FilledImage:
        """Raises ImageUnavailable and DiskFull."""
        try:
            async with self._client() as client:
                manifest = await self._manifest(client)
                return await fill_from_blobs(self.name, manifest, client, self._blobs, folder, room, layers)
        except BadManifest as error:
            raise self._unusable(str(error)) from None

    async def layer_files(self, pins: ExitStack) -> Sequence[LayerFile]:
        """Raises ImageUnavailable and DiskFull."""
        try:
            async with self._client() as client:
                return await fetch_layers(await self._manifest(client), client, self._blobs, pins)
        except BadManifest as error:
            raise self._unusable(str(error)) from None

    def _unusable(self, why: str) -> ImageUnavailable:
        """Return the error for an image that must be pushed again. Its tag is looked up at the next try."""
        for names in filter(None, (self._resolved, self._shared_names())):
            with suppress(OSError):
                names.forget(self.name)
        return ImageUnavailable(self.name, why, permanent=True)

    def _client(self) -> RegistryClient:
        settings = self._settings
        return RegistryClient(
            self._image, credentials_file=settings.credentials_file, insecure=settings.insecure_registries,
            health=self._health,
        )  # fmt: skip

    async def _resolve(self) -> str:
        image, search = self._image, ManifestSearch()
        try:
            async with self._client() as client:
                data, digest = await client.manifest(image.digest or image.tag or "latest")
                while (wanted := search.next(data)) is not None:
                    data, digest = await client.manifest(wanted.digest)
                config = read_manifest(parse_json(data)).config
                with ExitStack() as pins:
                    await self._blobs.fetch(client, [config], pins)
                    read_config(parse_json(self._blobs.read(config.digest) or b""))  # another machine's is not pulled
        except BadManifest as error:
            raise ImageUnavailable(self.name, str(error), permanent=True) from None
        self._blobs.keep(data)
        return digest

    async def _manifest(self, client: RegistryClient) -> Manifest:
        data = self._blobs.read(self._digest)
        if data is None:
            data, _ = await client.manifest(self._digest)
            self._blobs.keep(data)
        return read_manifest(parse_json(data))
