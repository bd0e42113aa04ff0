"""The layouts in which a folder or a tar file holds images: OCI's, that of `docker save`, and that of built images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Protocol

from rollyard.images.layout_files import LayoutFiles, read_json_file
from rollyard.images.oci_manifest import (
    BadManifest,
    Descriptor,
    ManifestSearch,
    descriptor,
    objects,
    parse_json,
    strings,
)

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


class BuiltLayout:
    """A built image (`built_images.py`), whose manifest is a file of its own beside the blobs of all."""

    def __init__(self, files: LayoutFiles, manifest: str) -> None:
        self._files = files
        self._manifest = manifest

    def manifest(self) -> bytes:
        return read_json_file(self._files, self._manifest)

    def open(self, digest: str) -> BinaryIO:
        return self._files.open(_blob_name(digest))


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _annotation(one: Mapping[str, Any]) -> str:
    found = one.get("annotations")
    return str(found.get(_NAME, "")) if isinstance(found, dict) else ""


def _offer(names: Iterable[str]) -> str:
    known = [name for name in names if name][:20]
    return f"write one of :{', :'.join(known)}" if known else "none of its images has a name"
