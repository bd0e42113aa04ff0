"""Images of OCI layouts, OCI archives and archives of `docker save`, as a source of the cache.

The two layouts in which a folder or a tar file holds images: OCI's, and that of `docker save`.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import DiskFull, FillRoom, ImageConfig, too_big
from rollyard.images.blob_store import BlobStore
from rollyard.images.fill_from_blobs import fill_from_blobs
from rollyard.images.image_file import ImageFile
from rollyard.images.layer_chunks import layer_chunks
from rollyard.images.layer_unpacker import TooBig
from rollyard.images.layout_files import LayoutFiles, layout_files, read_json_file
from rollyard.images.oci_manifest import (
    BadManifest,
    Descriptor,
    ManifestSearch,
    descriptor,
    objects,
    parse_json,
    read_manifest,
    strings,
)
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.tar_stream import BrokenArchive
from rollyard.kinds.values.image_reference import BuiltImage, LayoutImage

_NAME = "org.opencontainers.image.ref.name"


class Layout(Protocol):
    def manifest(self) -> bytes:
        """Return the image's manifest. Raises BadManifest and OSError."""

    def open(self, digest: str) -> BinaryIO:
        """Open the configuration or a layer. Raises BadManifest and OSError."""


class OciLayout:
    def __init__(self, files: LayoutFiles, tag: str | None) -> None:
        self._files = files
        self._tag = tag

    def manifest(self) -> bytes:
        search = ManifestSearch()
        listed = objects(parse_json(read_json_file(self._files, "index.json")), "manifests")
        wanted: Descriptor | None = self._chosen(listed, search)
        while wanted is not None:
            data = self._verified(wanted)
            wanted = search.next(data)
        return data

    def open(self, digest: str) -> BinaryIO:
        return self._files.open(_blob_name(digest))

    def _chosen(self, listed: list[dict[str, Any]], search: ManifestSearch) -> Descriptor:
        names = [_annotation(one) for one in listed]
        if self._tag is not None:
            ends = f":{self._tag}"
            tagged = [one for one, name in zip(listed, names, strict=True) if f":{name}".endswith(ends)]
            if not tagged:
                raise BadManifest(f"it has no image with the tag {self._tag}; {_offer(names)}")
            return descriptor(tagged[0]) if len(tagged) == 1 else search.choose(tagged)
        if len(listed) == 1:
            return descriptor(listed[0])
        if listed and not any(names):  # the images of several platforms
            return search.choose(listed)
        raise BadManifest(f"it has {len(listed)} images, so its name needs a tag; {_offer(names)}")

    def _verified(self, one: Descriptor) -> bytes:
        data = read_json_file(self._files, _blob_name(one.digest))
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != one.digest:
            raise BadManifest(f"its manifest {one.digest} is damaged: make the layout again")
        return data


class DockerArchive:
    """An archive of `docker save`. Its layers are named by the sha256 of their unpacked content, as in its configuration."""

    def __init__(self, files: LayoutFiles, tag: str | None) -> None:
        self._files = files
        self._tag = tag
        self._names: dict[str, str] = {}

    def manifest(self) -> bytes:
        """Return a manifest for the image, which has none of its own."""
        try:
            listed = json.loads(read_json_file(self._files, "manifest.json"))
        except (ValueError, RecursionError):
            listed = None
        chosen = self._chosen(objects({"images": listed}, "images"))
        config_name = str(chosen.get("Config"))
        config = read_json_file(self._files, config_name)
        config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
        rootfs = parse_json(config).get("rootfs")
        digests = strings(rootfs if isinstance(rootfs, dict) else {}, "diff_ids")
        layers = strings(chosen, "Layers")
        if len(layers) != len(digests):
            raise BadManifest("its manifest.json and its configuration name different numbers of layers")
        self._names = {config_digest: config_name, **dict(zip(digests, layers, strict=True))}
        made = {
            "schemaVersion": 2,
            "config": {"digest": config_digest, "size": len(config)},
            "layers": [{"digest": digest, "size": 0} for digest in digests],
        }
        return json.dumps(made).encode()

    def open(self, digest: str) -> BinaryIO:
        if not self._names:
            self.manifest()
        if digest not in self._names:
            raise BadManifest(f"it has no layer {digest}")
        return self._files.open(self._names[digest])

    def _chosen(self, listed: list[dict[str, Any]]) -> Mapping[str, Any]:
        names = [name for one in listed for name in strings(one, "RepoTags")]
        if self._tag is not None:
            ends = (f"/{self._tag}", f"/{self._tag}:latest")  # some tools write docker.io/ before the name
            for one in listed:
                if any(f"/{name}".endswith(ends) for name in strings(one, "RepoTags")):
                    return one
            raise BadManifest(f"it has no image {self._tag}; {_offer(names)}")
        if len(listed) == 1:
            return listed[0]
        raise BadManifest(f"it has {len(listed)} images, so its name needs one of them at the end; {_offer(names)}")


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _annotation(one: Mapping[str, Any]) -> str:
    found = one.get("annotations")
    return str(found.get(_NAME, "")) if isinstance(found, dict) else ""


def _offer(names: Iterable[str]) -> str:
    known = [name for name in names if name][:20]
    return f"write one of :{', :'.join(known)}" if known else "none of its images has a name"


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
