"""Unpacked layers of images, each in a folder of its own. Images that share the lowest layers share their folders.

What a layer unpacks to depends on the layers below it: on their symbolic links, and on what a whiteout hides. So a layer's
name is the digest of its own digest and of all below it. A folder of a layer has its files and whiteouts in `root`
(`layer_stack.py`), and what is known about it in `layer.json`. It is complete or absent.

Who fills or deletes a layer holds its lock exclusively. Who needs it until an image names it shares its lock. From then on
the image keeps it (`cache_folder.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import FillRoom, too_big
from rollyard.images.locks import FileLock, try_lock
from rollyard.images.shared_layers import PackJob, SharedLayers
from rollyard.images.unpack import BrokenLayer, LayerJob, unpack_differences

ABOUT = "layer.json"
"""File of a layer. A layer without it is damaged, and nobody new uses it."""
MOST_SEEN = 64
"""Greatest number of layers of which an overlay is made: each one costs time when a file is looked for, and the kernel takes at
most 500. Each layer whose number is a multiple of this is whole."""
_TRIES = 20
_FIRST_SECONDS, _POLL_SECONDS = 0.02, 0.5
DAMAGED_SECONDS = 60.0
"""Seconds for which a fill waits until nobody uses a damaged layer."""

Fetch = Callable[[Sequence[int]], Awaitable[Sequence[Path]]]
"""Returns the files of layers, by their numbers."""


@dataclass(frozen=True)
class UnpackedLayer:
    name: str
    bytes: int
    """Bytes on disk. What is linked from the layers below counts there."""
    names: int
    """Number of files and folders when it was unpacked."""
    whole: bool = False
    """Whether the layer has links to all files of the layers below, so that those are not looked into."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["name"], data["bytes"], data["names"], data["whole"])

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what is noted about a layer; None if it is missing, or damaged: a machine that crashes loses what was
        written shortly before."""
        try:
            return cls.from_json(json.loads((folder / ABOUT).read_bytes()))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def layer_names(digests: Sequence[str]) -> list[str]:
    """Return the names of an image's layers, the lowest first. `digests`: verified digests of their files."""
    names, above = list[str](), b""
    for digest in digests:
        above = hashlib.sha256(above + digest.encode() + b"\n").digest()
        names.append(f"sha256-{above.hex()}")
    return names


def seen_layers(layers: Sequence[UnpackedLayer]) -> list[UnpackedLayer]:
    """Return the layers of which an overlay is made, the topmost first: those down to the first that is whole."""
    seen = list[UnpackedLayer]()
    for layer in layers:
        seen.append(layer)
        if layer.whole:
            break
    return seen


class UnpackedLayers:
    def __init__(
        self, folder: Path, filling: Path, locks: Path, discard: Callable[[Path], None], is_used: Callable[[str], bool]
    ) -> None:
        """`discard`: function that deletes a folder. `is_used`: whether somebody pins an image that names a layer."""
        self.folder = folder
        self._filling = filling
        self._locks = locks
        self._discard = discard
        self._is_used = is_used

    def path(self, name: str) -> Path:
        return self.folder / name

    def root(self, name: str) -> Path:
        return self.folder / name / "root"

    def lock_path(self, name: str) -> Path:
        return self._locks / f"layer-{name}"

    async def lock_missing(self, image: str, name: str) -> FileLock | None:
        """Lock a layer in order to fill it; None if it is complete. Waits for who fills it now, and for a while until nobody
        uses a damaged one, which is deleted. Raises ImageUnavailable."""
        path, pause, ends = self.path(name), _FIRST_SECONDS, 0.0
        while UnpackedLayer.read(path) is None:
            lock = try_lock(self.lock_path(name), shared=False)
            if UnpackedLayer.read(path) is not None:
                if lock is not None:
                    lock.release()
                return None
            if lock is not None:
                try:
                    if not path.exists() or not self._is_used(name):
                        await asyncio.to_thread(self._discard, path)
                        return lock.again()
                finally:
                    lock.release()
            ends = ends if lock is not None or self._is_held(name) else 0.0
            if not ends:
                ends = time.monotonic() + DAMAGED_SECONDS
            elif time.monotonic() > ends:
                raise ImageUnavailable(image, f"its layer {name} is damaged, and in use: it is made again afterwards")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        return None

    def _is_held(self, name: str) -> bool:
        """Return whether nobody fills a layer. Somebody else may keep it."""
        lock = try_lock(self.lock_path(name), shared=True)
        if lock is not None:
            lock.release()
        return lock is not None

    async def fill(
        self, image: str, names: Sequence[str], files: Mapping[int, Path], packed: Set[int], room: FillRoom
    ) -> None:
        """Unpack missing layers, which the caller has locked, and whose children inherit these locks. `names`: all layers, the
        lowest first. `files`: number -> file of a missing layer. `packed`: numbers of those that are of the shared tier.
        Raises as `unpack_differences`."""
        growing = {number: self._filling / f"layer-{names[number]}" for number in files}
        jobs = list[LayerJob]()
        try:
            for number, name in enumerate(names):
                if number in files:
                    await asyncio.to_thread(self._discard, growing[number])
                    growing[number].mkdir()
                    growing[number].chmod(0o755)
                    whole = (number + 1) % MOST_SEEN == 0
                    jobs.append(LayerJob(growing[number] / "root", whole, files[number], number in packed))
                elif (layer := UnpackedLayer.read(self.path(name))) is not None:
                    jobs.append(LayerJob(self.root(name), layer.whole, bytes=layer.bytes))
            made = await unpack_differences(image, jobs, room)
            for number, result in zip(files, made, strict=True):
                layer = UnpackedLayer(names[number], **result)
                (growing[number] / ABOUT).write_text(json.dumps(asdict(layer)))
                growing[number].rename(self.path(layer.name))
        finally:
            for path in growing.values():
                await asyncio.to_thread(self._discard, path)


class HeldLayers:
    """The layers of one image while it is filled: no eviction deletes them. Use as a context manager."""

    def __init__(self, layers: UnpackedLayers, shared: SharedLayers | None = None) -> None:
        """`shared`: the layers of the shared tier, which missing ones are read from, and new ones are written to."""
        self._layers = layers
        self._shared = shared
        self._locks: dict[str, FileLock] = {}

    async def complete(self, image: str, names: Sequence[str], fetch: Fetch, room: FillRoom) -> list[UnpackedLayer]:
        """Return the layers, the topmost first, and fetch and unpack the missing ones. `names`: the lowest first. Raises
        ImageUnavailable, and the errors of `fetch` and `unpack_differences`."""
        broken = set[int]()
        for _ in range(_TRIES):
            held = self._held(names)
            if sum(layer.bytes for layer in held) > room.limit_bytes:
                raise too_big(image, room.limit_bytes)
            if len(held) == len(names):
                if self._shared is not None:
                    await self._shared.complete(self._pack_jobs(held), room)
                return held[::-1]
            try:
                await self._fill(image, names, fetch, room)
            except BrokenLayer as error:  # its file may have been damaged since it came, and `fetch` looks at it again
                if error.number in broken:
                    raise
                broken.add(error.number)
        raise ImageUnavailable(
            image, "its layers were deleted as soon as they were there: raise `sandbox.images.cacheSize`"
        )

    def roots(self, layers: Sequence[UnpackedLayer]) -> list[Path]:
        """Return the folders that an overlay shows, the topmost first, as are `layers`."""
        return [self._layers.root(layer.name) for layer in seen_layers(layers)]

    async def _fill(self, image: str, names: Sequence[str], fetch: Fetch, room: FillRoom) -> None:
        async with AsyncExitStack() as leases:
            with ExitStack() as stack:
                missing = dict[int, int]()
                for number, name in enumerate(names):
                    if self._hold(name) is not None:
                        continue
                    self._let_go(names[number:])  # all take locks from the lowest on, so no two wait for each other
                    lock = await self._layers.lock_missing(image, name)
                    while lock is None and self._hold(name) is None:  # another one looks at the layer, or deletes it
                        await asyncio.sleep(_FIRST_SECONDS)
                        lock = await self._layers.lock_missing(image, name)
                    if lock is not None:
                        stack.callback(lock.release)
                        missing[number] = lock.fd
                locked = replace(room, layer_fds=tuple(missing.values()))
                if not await self._filled(image, names, list(missing), fetch, locked, leases):
                    return
            if self._shared is not None and len(layers := self._held(names)) == len(names):
                jobs = self._pack_jobs(layers)
                await self._shared.publish([jobs[number] for number in missing], room)  # while it has their leases

    async def _filled(
        self,
        image: str,
        names: Sequence[str],
        missing: Sequence[int],
        fetch: Fetch,
        room: FillRoom,
        leases: AsyncExitStack,
    ) -> bool:
        """Unpack missing layers from the shared tier, or else fetch them. Return False if a file of the tier was damaged."""
        found = {number: await self._shared.file(names[number], leases) for number in missing} if self._shared else {}
        files = {number: file for number, file in found.items() if file is not None}
        packed = set(files)
        if rest := [number for number in missing if number not in packed]:
            files |= dict(zip(rest, await fetch(rest), strict=True))
        try:
            await self._layers.fill(image, names, {number: files[number] for number in missing}, packed, room)
        except BrokenLayer as error:
            if self._shared is None or error.number not in packed:
                raise
            await self._shared.discard(names[error.number], str(error))
            return False
        return True

    def _pack_jobs(self, layers: Sequence[UnpackedLayer]) -> list[PackJob]:
        """Return what the shared tier packs. `layers`: all of an image, the lowest first."""
        jobs = list[PackJob]()
        for number, layer in enumerate(layers):
            below = self.roots(layers[:number][::-1]) if layer.whole else ()
            jobs.append(PackJob(layer.name, self._layers.root(layer.name), layer.names, below))
        return jobs

    def _held(self, names: Sequence[str]) -> list[UnpackedLayer]:
        """Return the layers that are complete, and keep them."""
        return [layer for name in names if (layer := self._hold(name)) is not None]

    def _let_go(self, names: Sequence[str]) -> None:
        for name in names:
            if (lock := self._locks.pop(name, None)) is not None:
                lock.release()

    def _hold(self, name: str) -> UnpackedLayer | None:
        """Return a layer, and keep it; None if it is absent, damaged or being filled."""
        if name not in self._locks:
            lock = try_lock(self._layers.lock_path(name), shared=True)
            if lock is None:
                return None
            self._locks[name] = lock
        layer = UnpackedLayer.read(self._layers.path(name))
        if layer is None:
            self._let_go([name])
        else:
            os.utime(self._layers.path(name))
        return layer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._locks.values():
            lock.release()
