"""Images of OCI layouts, OCI archives and archives of `docker save`, as a source of the cache."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import DiskFull, FillRoom, too_big
from rollyard.images.blob_store import BlobStore
from rollyard.images.fill_from_blobs import fetch_layers, fill_from_blobs
from rollyard.images.image_file import ImageFile
from rollyard.images.image_source import FilledImage, LayerFile
from rollyard.images.layer_chunks import layer_chunks
from rollyard.images.layer_unpacker import TooBig
from rollyard.images.layout_files import LayoutFiles, layout_files
from rollyard.images.layouts import BuiltLayout, DockerArchive, Layout, OciLayout
from rollyard.images.oci_manifest import BadManifest, Descriptor, Manifest, parse_json, read_manifest
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.tar_stream import BrokenArchive
from rollyard.images.unpacked_layers import HeldLayers
from rollyard.kinds.values.image_reference import BuiltImage, LayoutImage

_CHUNK = 1 << 20
_NO_LIMIT = 1 << 50
_KINDS = {"oci": "OCI layout", "oci-archive": "OCI archive", "docker-archive": "archive of `docker save`"}

T = TypeVar("T")


@dataclass(frozen=True)
class LayoutPlace:
    """Where an image of a layout or an archive is, and how it is read."""

    name: str
    """Normal form of the image's name."""
    path: Path
    """The folder or archive."""
    content: Path
    """File that changes with the image."""
    what: str
    """Kind of the file, for errors."""
    layout: Callable[[LayoutFiles], Layout]
    missing: str = ""
    """Sentence about a missing file."""
    by_content: bool = False
    """Whether the digests are those of the unpacked layers."""


def place_of(image: LayoutImage) -> LayoutPlace:
    path, archive = Path(image.path), image.kind == "docker-archive"

    def layout(files: LayoutFiles) -> Layout:
        return DockerArchive(files, image.tag) if archive else OciLayout(files, image.tag)

    content = path / "index.json" if image.kind == "oci" else path
    return LayoutPlace(image.text, path, content, _KINDS[image.kind], layout, by_content=archive)


def place_of_built(image: BuiltImage, folder: Path, missing: str) -> LayoutPlace:
    """`folder`: a node's cache of images, or a shared folder. `missing`: sentence about a missing image."""
    content = Path(image.manifest(os.fspath(folder)))
    name = content.relative_to(folder / "built").as_posix()
    return LayoutPlace(
        image.text, folder / "built", content, "built image", lambda files: BuiltLayout(files, name), missing
    )


class LayoutSource:
    shared = False

    def __init__(self, place: LayoutPlace, blobs: BlobStore, resolved: ResolvedTags) -> None:
        self._place = place
        self._blobs = blobs
        self._left = 0
        """Bytes that the blobs of an image may still have."""
        self._file = ImageFile(place.name, place.content, place.what, resolved, place.missing)
        self._digest = ""

    @property
    def name(self) -> str:
        return self._place.name

    async def key(self) -> str:
        """Return the digest of the manifest; for an archive of `docker save`, which has no manifest, of one that is made.
        Raises ImageUnavailable."""
        self._digest = await self._file.digest(lambda: _digest(self._read(_manifest)))
        return self._digest

    def known(self) -> str | None:
        return self._file.known()

    async def fill(self, folder: Path, room: FillRoom, layers: HeldLayers) -> FilledImage:
        """Raises ImageUnavailable and DiskFull."""
        self._left = room.limit_bytes
        try:
            async with self._manifest() as manifest:
                return await fill_from_blobs(self.name, manifest, self, self._blobs, folder, room, layers)
        except TooBig:
            raise too_big(self.name, room.limit_bytes) from None

    async def layer_files(self, pins: ExitStack) -> Sequence[LayerFile]:
        """Raises ImageUnavailable and DiskFull."""
        self._left = _NO_LIMIT
        async with self._manifest() as manifest:
            return await fetch_layers(manifest, self, self._blobs, pins)

    @asynccontextmanager
    async def _manifest(self) -> AsyncIterator[Manifest]:
        """Yield the manifest that `key` has found. All blobs are verified by it, so a file that is written again with the same
        manifest has not changed, and an error of an image that was replaced says so. Raises ImageUnavailable."""
        data = await self._unchanged()
        try:
            yield read_manifest(parse_json(data))
        except (BadManifest, ImageUnavailable) as error:
            await self._unchanged()
            if isinstance(error, BadManifest):
                raise ImageUnavailable(self.name, str(error), permanent=True) from None
            raise

    async def _unchanged(self) -> bytes:
        data = await asyncio.to_thread(self._read, _manifest)
        if _digest(data) != self._digest:
            raise self._file.changed()
        return data

    async def blob(self, blob: Descriptor, path: Path) -> None:
        def copy(layout: Layout) -> None:
            with layout.open(blob.digest) as source:
                self._copy(source, blob.digest, path)

        await asyncio.to_thread(self._read, copy)

    def _read(self, read: Callable[[Layout], T]) -> T:
        try:
            with layout_files(self._place.path) as files:
                return read(self._place.layout(files))
        except BadManifest as error:
            raise ImageUnavailable(self.name, str(error), permanent=True) from None
        except OSError as error:
            raise ImageUnavailable(self.name, f"{self._place.path} cannot be read: {error.strerror or error}") from None

    def _copy(self, source: BinaryIO, digest: str, path: Path) -> None:
        hashed = hashlib.sha256()
        chunks = layer_chunks(source) if self._place.by_content else iter(lambda: source.read(_CHUNK), b"")
        try:
            with open(path, "wb") as file:
                for chunk in chunks:
                    self._left -= len(chunk)  # a small archive may unpack to any size
                    if self._left < 0:
                        file.truncate(0)
                        raise TooBig
                    hashed.update(chunk)
                    file.write(chunk)
        except BrokenArchive as error:
            raise BadManifest(f"its layer {digest} cannot be unpacked, {error}: save the image again") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self.name, path.parent) from None
            raise
        if f"sha256:{hashed.hexdigest()}" != digest:
            raise BadManifest(f"its blob {digest} is damaged: make the layout or archive again")


def _digest(manifest: bytes) -> str:
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def _manifest(layout: Layout) -> bytes:
    return layout.manifest()
