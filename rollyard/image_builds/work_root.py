"""The root file system of a stage while its steps run: its layers in a folder, unpacked when a step first needs them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rollyard.core.errors import ImageBuildFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.tree_changes import Layer, Signatures, changes, read_signatures, write_layer
from rollyard.images.base import DiskFull, FillRoom
from rollyard.images.unpack import BrokenLayer, run_child, unpack_layers

_NO_LIMIT = 1 << 50

Change = Callable[[Path], Awaitable[None]]


class WorkRoot:
    def __init__(self, store: LayerStore, folder: Path, lock_fd: int) -> None:
        """`folder`: an empty folder for this root alone. `lock_fd`: descriptor of the lock of the build's work folder."""
        self._store = store
        self._folder = folder
        self._room = FillRoom(_NO_LIMIT, lock_fd)
        self._root = folder / "root"
        self._signatures: Signatures | None = None

    async def open(self, layers: Sequence[Layer]) -> Path:
        """Return the folder with the root file system. The layers are unpacked by the first call."""
        if not self._root.is_dir():
            await unpack(self._store, layers, self._root, self._room)
        return self._root

    async def change(self, layers: Sequence[Layer], change: Change, passed_over: Sequence[str] = ()) -> Layer | None:
        """Change the root, and return the layer of the changes, which is in the store; None if there are none."""
        root = await self.open(layers)
        before = self._signatures if self._signatures is not None else await asyncio.to_thread(read_signatures, root)
        await change(root)
        self._signatures = after = await asyncio.to_thread(read_signatures, root)
        changed, deleted = changes(before, after, passed_over)
        if not changed and not deleted:
            return None
        growing = self._folder / "layer"
        try:
            layer = await asyncio.to_thread(_write, root, changed, deleted, growing)
        except OSError as error:
            raise ImageBuildFailed(f"a layer cannot be written into {self._folder}: {error.strerror}") from error
        self._store.add(growing, layer)
        return layer

    async def look(self, layers: Sequence[Layer], look: Change) -> None:
        """Let `look` use the root. What it writes there is lost."""
        root = await self.open(layers)
        before = self._signatures if self._signatures is not None else await asyncio.to_thread(read_signatures, root)
        await look(root)
        self._signatures = before
        if before != await asyncio.to_thread(read_signatures, root):
            self._signatures = None
            await asyncio.to_thread(remove_folder, root)

    async def unpack_archive(self, archive: Path, root: Path | None = None) -> None:
        """Unpack a tar archive over the root, or over another folder of the sandboxes' account, as this account. No path leads
        out of it."""
        account, root = sandbox_account(), root or self._root
        job = {
            "layers": [str(archive)], "root": str(root), "limit": _NO_LIMIT, "uid": account.uid, "gid": account.gid,
        }  # fmt: skip
        result = await run_child("rollyard.images.unpack_main", job, self._room)
        if "bytes" not in result:
            why = result.get("why") or result.get("failed") or "the disk is full"
            raise ImageBuildFailed(f"files cannot be copied into {root}: {why}")


async def unpack(store: LayerStore, layers: Sequence[Layer], root: Path, room: FillRoom) -> None:
    """Unpack layers into the new folder `root`. Raises ImageBuildFailed."""
    try:
        await unpack_layers("the image", [store.path(layer) for layer in layers], root, room)
    except DiskFull:
        raise ImageBuildFailed(f"the disk of {root.parent} is full: free some space, and build again") from None
    except BrokenLayer as error:
        os.unlink(store.path(layers[error.number]))
        raise ImageBuildFailed(
            f"the layer {layers[error.number].digest} of the build cache is damaged ({error}), and is deleted now: build again"
        ) from None


def _write(root: Path, changed: Sequence[str], deleted: Sequence[str], growing: Path) -> Layer:
    with open(growing, "wb") as file:
        layer = write_layer({path: os.path.join(root, path) for path in changed}, deleted, file)
        file.flush()
        os.fsync(file.fileno())
        return layer
