"""The forms in which a built image is written: a name, a folder, an OCI layout, or an OCI archive. Each is complete or
absent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollyard.core.errors import ImageBuildFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.image_builds.image_state import MANIFEST_TYPE, ImageState, sha256
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.tree_changes import Layer
from rollyard.image_builds.work_root import NO_LIMIT, unpack
from rollyard.images.base import FillRoom
from rollyard.images.built_images import BuiltImages
from rollyard.images.folder_config import write_folder_config
from rollyard.images.locks import try_lock, wait_for_lock
from rollyard.images.oci_manifest import machine
from rollyard.images.whole_file import write_whole
from rollyard.kinds.values.image_reference import BuiltImage, LayoutImage, PathImage, parse_image

FORMS = "write a new folder's path, oci:/LAYOUT:TAG, or oci-archive:/FILE.tar"
_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
_NAME = "org.opencontainers.image.ref.name"

Output = BuiltImage | LayoutImage | PathImage


def parse_output(text: str) -> Output:
    """Return the form of an output. A relative path is below the working folder. Raises ImageBuildFailed."""
    try:
        form = parse_image(text)
    except ValueError:
        form = None
    if isinstance(form, BuiltImage):
        return form
    if isinstance(form, LayoutImage) and form.kind in ("oci", "oci-archive"):
        return LayoutImage(form.kind, os.path.abspath(form.path), form.tag)
    if not isinstance(form, PathImage) or form.kind != "folder":
        raise ImageBuildFailed(f"an image cannot be written as {text!r}: {FORMS}")
    path = os.path.abspath(form.path)
    if os.path.lexists(path):
        raise ImageBuildFailed(
            f"{path} exists already, and sandboxes may use it: choose a new folder, or delete this one"
        )
    return PathImage(path, "folder")


async def write_output(output: Output, state: ImageState, store: LayerStore, lock_fd: int, built: Path) -> None:
    """`built`: folder of the images with a name (`BuiltImages`). Raises ImageBuildFailed."""
    try:
        match output:
            case BuiltImage():
                await _write_built(BuiltImages(built), output, state, store)
            case PathImage(path=path):
                await _write_folder(Path(path), state, store, lock_fd)
            case LayoutImage(kind="oci", path=path, tag=tag):
                await _write_layout(Path(path), tag, state, store)
            case LayoutImage(path=path, tag=tag):
                _write_archive(Path(path), tag, state, store)
    except OSError as error:
        raise ImageBuildFailed(f"{output.text} cannot be written: {error.strerror} ({error.filename})") from error


async def _write_folder(path: Path, state: ImageState, store: LayerStore, lock_fd: int) -> None:
    with _growing(path) as growing:
        await unpack(store, state.layers, growing, FillRoom(NO_LIMIT, lock_fd))
        write_folder_config(growing, state.sandbox_config())
        growing.rename(path)


async def _write_built(images: BuiltImages, image: BuiltImage, state: ImageState, store: LayerStore) -> None:
    async with images.writing():
        for layer in state.layers:
            await asyncio.to_thread(images.add_layer, layer.digest, layer.size, store.path(layer))
        await asyncio.to_thread(images.add_image, image, state.manifest_json(), state.config_json())
    await asyncio.to_thread(images.sweep)  # the name may have had another image


async def _write_layout(path: Path, tag: str | None, state: ImageState, store: LayerStore) -> None:
    """Other builds may write other images of the layout at the same time: each adds a line to its list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = await wait_for_lock(path.with_name(f".{path.name}.lock"))
    try:
        _add_to_layout(path, tag, state, store)
    finally:
        lock.release_and_delete()


def _add_to_layout(path: Path, tag: str | None, state: ImageState, store: LayerStore) -> None:
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    write_whole(path / "oci-layout", _LAYOUT)
    for layer in state.layers:
        target = blobs / layer.digest.removeprefix("sha256:")
        if not target.exists():
            growing = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            shutil.copyfile(store.path(layer), growing)
            growing.rename(target)
    for data in (state.config_json(), state.manifest_json()):
        write_whole(blobs / sha256(data).removeprefix("sha256:"), data)
    try:
        others = json.loads((path / "index.json").read_bytes())["manifests"]
    except FileNotFoundError:
        others = []
    except (ValueError, KeyError):
        raise ImageBuildFailed(f"{path} is no OCI layout: its index.json cannot be read; choose a new folder") from None
    kept = [one for one in others if one.get("annotations", {}).get(_NAME) != tag]
    write_whole(path / "index.json", _index(tag, state, kept))


def _write_archive(path: Path, tag: str | None, state: ImageState, store: LayerStore) -> None:
    with _growing(path) as growing:
        with tarfile.open(growing, "w", format=tarfile.PAX_FORMAT) as archive:
            small = {_blob(sha256(data)): data for data in (state.config_json(), state.manifest_json())}
            for name, data in {"oci-layout": _LAYOUT, "index.json": _index(tag, state, []), **small}.items():
                _add(archive, name, data)
            for layer in {layer.digest: layer for layer in state.layers}.values():
                _add_layer(archive, layer, store)
        growing.replace(path)


@contextlib.contextmanager
def _growing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` for what becomes `path`, and delete it at the end. What a killed build has left there is
    deleted too: a lock shows that nobody else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = try_lock(path.with_name(f".{path.name}.lock"), shared=False)
    if lock is None:
        raise ImageBuildFailed(f"another build is writing {path}: wait for its end, or choose another place")
    growing = path.with_name(f".{path.name}.new")
    try:
        _delete(growing)
        yield growing
    finally:
        _delete(growing)
        lock.release_and_delete()


def _delete(path: Path) -> None:
    if path.is_dir():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _index(tag: str | None, state: ImageState, others: list[Mapping[str, Any]]) -> bytes:
    manifest = state.manifest_json()
    own: dict[str, Any] = {
        "mediaType": MANIFEST_TYPE,
        "digest": sha256(manifest),
        "size": len(manifest),
        "platform": {"os": "linux", "architecture": machine()},
    }
    if tag is not None:
        own["annotations"] = {_NAME: tag}
    whole = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [*others, own]
    }  # fmt: skip
    return json.dumps(whole).encode()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    archive.addfile(info, io.BytesIO(data))


def _add_layer(archive: tarfile.TarFile, layer: Layer, store: LayerStore) -> None:
    info = tarfile.TarInfo(_blob(layer.digest))
    info.size, info.mode = layer.size, 0o644
    with open(store.path(layer), "rb") as file:
        archive.addfile(info, file)
