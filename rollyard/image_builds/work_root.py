"""The layers of a stage while its steps run. They are unpacked when a step first needs them, each once for all builds and
sandboxes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rollyard.core.errors import ImageBuildFailed, ImageUnavailable
from rollyard.host.sandbox_account import sandbox_account
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.step_root import StepRoot
from rollyard.image_builds.tree_changes import Layer, pack_archive, read_changes, write_layer
from rollyard.images.base import DiskFull, FillRoom
from rollyard.images.layer_stack import LayerStack
from rollyard.images.unpack import BrokenLayer, run_child, unpack_layers
from rollyard.images.unpacked_layers import HeldLayers, layer_names

NO_LIMIT = 1 << 50

Command = Callable[[StepRoot], Awaitable[None]]


class WorkRoot:
    def __init__(
        self, store: LayerStore, held: HeldLayers, folder: Path, lock_fd: int, overlay: Callable[[], str | None]
    ) -> None:
        """`held`: the build's unpacked layers. `folder`: an empty folder for this root alone. `lock_fd`: descriptor of the lock
        of the build's work folder. `overlay`: returns fuse-overlayfs, or None for the kernel's overlay; it blocks."""
        self._store = store
        self._held = held
        self._folder = folder
        self._room = FillRoom(NO_LIMIT, lock_fd)
        self._overlay = overlay

    async def open(self, layers: Sequence[Layer]) -> LayerStack:
        """Return the files that the layers make up, the lowest layer first. Raises ImageBuildFailed."""
        return LayerStack(await self._unpacked(layers))

    async def run(self, layers: Sequence[Layer], command: Command, passed_over: Sequence[str]) -> Layer | None:
        """Run a command over the layers, and return the layer of its changes, which is in the store; None if there are none."""
        async with self._step(layers) as root:
            await command(root)
            changed, deleted = await asyncio.to_thread(read_changes, root.changed, root.files, passed_over)
            changed = await asyncio.to_thread(root.without_shown, changed)
            if not changed and not deleted:
                return None
            return await asyncio.to_thread(self._keep, lambda file: write_layer(changed, deleted, file))

    async def look(self, layers: Sequence[Layer], command: Command) -> None:
        """Run a command over the layers. What it writes is lost."""
        async with self._step(layers) as root:
            await command(root)

    async def add(self, layers: Sequence[Layer], archive: Path) -> Layer:
        """Return a tar archive as the next layer, which is in the store. Raises ImageBuildFailed if it cannot be unpacked over
        the others."""
        layer = await asyncio.to_thread(self._keep, lambda file: pack_archive(archive, file))
        await self._unpacked([*layers, layer])
        return layer

    async def unpack_archive(self, archive: Path, folder: Path) -> None:
        """Unpack a tar archive into a folder of the sandboxes' account, as this account. No path leads out of it."""
        account = sandbox_account()
        job = {
            "layers": [str(archive)], "root": str(folder), "limit": NO_LIMIT, "uid": account.uid, "gid": account.gid,
        }  # fmt: skip
        result = await run_child("rollyard.images.unpack_main", job, self._room)
        if "bytes" not in result:
            why = result.get("why") or result.get("failed") or "the disk is full"
            raise ImageBuildFailed(f"files cannot be copied into {folder}: {why}")

    @contextlib.asynccontextmanager
    async def _step(self, layers: Sequence[Layer]) -> AsyncIterator[StepRoot]:
        folders, fuse = await self._unpacked(layers), await asyncio.to_thread(self._overlay)
        root = StepRoot(self._folder / f"step-{secrets.token_hex(4)}", folders, fuse)
        try:
            await asyncio.to_thread(root.make)
            yield root
        finally:
            await asyncio.to_thread(root.remove)

    async def _unpacked(self, layers: Sequence[Layer]) -> list[Path]:
        """Return the folders of the layers, the topmost first."""

        async def fetch(numbers: Sequence[int]) -> Sequence[Path]:
            return [self._store.path(layers[number]) for number in numbers]

        with unpacking(self._store, layers, self._folder):
            names = layer_names([layer.digest for layer in layers])
            return self._held.roots(await self._held.complete("the image", names, fetch, self._room))

    def _keep(self, write: Callable[[BinaryIO], Layer]) -> Layer:
        growing = self._folder / "layer"
        try:
            with open(growing, "wb") as file:
                layer = write(file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ImageBuildFailed(f"a layer cannot be written into {self._folder}: {error.strerror}") from error
        self._store.add(growing, layer)
        return layer


async def unpack(store: LayerStore, layers: Sequence[Layer], root: Path, room: FillRoom) -> None:
    """Unpack layers into the new folder `root`. Raises ImageBuildFailed."""
    with unpacking(store, layers, root.parent):
        await unpack_layers("the image", [store.path(layer) for layer in layers], root, room)


@contextlib.contextmanager
def unpacking(store: LayerStore, layers: Sequence[Layer], folder: Path) -> Iterator[None]:
    """Raise ImageBuildFailed if layers cannot be unpacked, and delete a damaged one."""
    try:
        yield
    except DiskFull:
        raise ImageBuildFailed(f"the disk of {folder} is full: free some space, and build again") from None
    except ImageUnavailable as error:
        raise ImageBuildFailed(str(error)) from None
    except BrokenLayer as error:
        store.path(layers[error.number]).unlink(missing_ok=True)
        raise ImageBuildFailed(
            f"the layer {layers[error.number].digest} of the build cache cannot be unpacked ({error}), and is deleted now: "
            "build again"
        ) from None
