"""Images of OCI layouts, OCI archives and archives of `docker save`, as a source of the cache."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import DiskFull, FillRoom, ImageConfig, too_big
from rollyard.images.blob_store import BlobStore
from rollyard.images.fill_from_blobs import fill_from_blobs
from rollyard.images.image_file import ImageFile
from rollyard.images.layer_chunks import layer_chunks
from rollyard.images.layer_unpacker import TooBig
from rollyard.images.layout_files import layout_files
from rollyard.images.layouts import DockerArchive, Layout, OciLayout
from rollyard.images.oci_manifest import BadManifest, Descriptor, parse_json, read_manifest
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.tar_stream import BrokenArchive
from rollyard.kinds.values.image_reference import BuiltImage, LayoutImage

_CHUNK = 1 << 20
_KINDS = {"oci": "OCI layout", "oci-archive": "OCI archive", "docker-archive": "archive of `docker save`"}

T = TypeVar("T")


class LayoutSource:
    shared = False

    def __init__(
        self,
        image: LayoutImage,
        blobs: BlobStore,
        resolved: ResolvedTags,
        built: BuiltImage | None = None,
        others: Sequence[str] = (),
    ) -> None:
        """`built`: the image's name, if it is not the path. `others`: names that one could mean instead."""
        self._image = image
        self._name = image.text if built is None else built.text
        missing = "" if built is None else _missing(built, others)
        self._blobs = blobs
        self._left = 0
        """Bytes that the blobs of an image may still have."""
        self._path = Path(image.path)
        self._content = self._path / "index.json" if image.kind == "oci" else self._path
        self._file = ImageFile(self._name, self._content, _KINDS[image.kind], resolved, missing)

    @property
    def name(self) -> str:
        return self._name

    async def key(self) -> str:
        """Return the digest of the manifest; for an archive of `docker save`, which has no manifest, of one that is made.
        Raises ImageUnavailable."""
        return await self._file.digest(lambda: f"sha256:{hashlib.sha256(self._read(_manifest)).hexdigest()}")

    def known(self) -> str | None:
        return self._file.known()

    async def fill(self, folder: Path, room: FillRoom) -> ImageConfig:
        """Raises ImageUnavailable and DiskFull."""
        identity, self._left = self._file.identity(), room.limit_bytes
        data = await asyncio.to_thread(self._read, _manifest)
        try:
            config = await fill_from_blobs(self.name, read_manifest(parse_json(data)), self, self._blobs, folder, room)
        except TooBig:
            raise too_big(self.name, room.limit_bytes) from None
        except BadManifest as error:
            raise ImageUnavailable(self.name, str(error), permanent=True) from None
        self._file.check_unchanged(identity)
        return config

    async def blob(self, blob: Descriptor, path: Path) -> None:
        def copy(layout: Layout) -> None:
            with layout.open(blob.digest) as source:
                self._copy(source, blob.digest, path)

        await asyncio.to_thread(self._read, copy)

    def _read(self, read: Callable[[Layout], T]) -> T:
        try:
            with layout_files(self._path) as files:
                kind = DockerArchive if self._image.kind == "docker-archive" else OciLayout
                return read(kind(files, self._image.tag))
        except BadManifest as error:
            raise ImageUnavailable(self.name, str(error), permanent=True) from None
        except OSError as error:
            raise ImageUnavailable(self.name, f"{self._path} cannot be read: {error.strerror or error}") from None

    def _copy(self, source: BinaryIO, digest: str, path: Path) -> None:
        hashed = hashlib.sha256()
        archived = self._image.kind == "docker-archive"  # the digest is that of the unpacked layer
        chunks = layer_chunks(source) if archived else iter(lambda: source.read(_CHUNK), b"")
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


def _missing(built: BuiltImage, others: Sequence[str]) -> str:
    only = f", only {', '.join(others)}" if others else ""
    return (
        f"no image with this name is here{only}: `rollyard images build --tag {built.name}:{built.tag}` makes it for this "
        "machine, with --shared FOLDER for all nodes of a pool with this sharedFolder"
    )


def _manifest(layout: Layout) -> bytes:
    return layout.manifest()
