"""Unpacked layers in a folder that all nodes see: one packed file (`flat_layer.py`) for each. One node makes a file, the others
unpack it.

A file appears by a rename, so it is complete or absent. Its pieces are verified when it is unpacked. A damaged file is
deleted and made again, after a while if its end is missing: on a folder that lags, the end may still come.

If the folder cannot be used, the log says so, and a layer counts as absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.lagging_files import LAG_POLL_SECONDS, LAG_SECONDS
from rollyard.core.regular_file import open_regular
from rollyard.host.removed_folder import remove
from rollyard.images.base import FillRoom
from rollyard.images.flat_layer import BrokenFlatLayer, IncompleteFlatLayer, read_index
from rollyard.images.shared_lease import shared_lease
from rollyard.images.unpack import run_child

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackJob:
    """An unpacked layer."""

    name: str
    root: Path
    names: int
    """Number of its files and folders."""
    below: Sequence[Path] = ()
    """Folders of the layers below, if it is whole."""

    def to_json(self, file: Path) -> dict[str, object]:
        """`file`: where it is to be packed."""
        below = [str(one) for one in self.below]
        return {"root": str(self.root), "names": self.names, "below": below, "file": str(file)}


class SharedLayers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.tar.zst"

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each layer. Raises OSError."""
        found = {}
        for path in self.folder.glob("*.tar.zst"):
            with contextlib.suppress(FileNotFoundError):
                found[path.name.removesuffix(".tar.zst")] = path.stat().st_size
        return found

    async def file(self, name: str, leases: contextlib.AsyncExitStack) -> Path | None:
        """Return the file of a layer. If there is none, wait for the node that makes it. If no node does, return None; then no
        other node makes it until `leases` is closed."""
        path = self.path(name)
        try:
            while not await self._is_complete(path):
                held = await leases.enter_async_context(shared_lease(path.with_suffix(".lease"), path.exists))
                if held and not await asyncio.to_thread(path.exists):
                    return None
        except OSError as error:
            log.warning("the shared folder %s cannot be used: %s", self.folder, error.strerror)
            return None
        return path

    async def discard(self, name: str, why: str) -> None:
        """Delete a damaged file."""
        log.warning("%s is damaged (%s), and is made again", self.path(name), why)
        await asyncio.to_thread(remove, self.path(name))

    async def complete(self, layers: Sequence[PackJob], room: FillRoom) -> None:
        """Make the files that are missing, and wait for those that other nodes make. `layers`: the lowest first. The caller
        has no lease of a layer, for all take leases from the lowest on, so that no two wait for each other."""
        try:
            async with contextlib.AsyncExitStack() as leases:
                own = [one for one in await asyncio.to_thread(self._missing, layers) if await self._is_own(one, leases)]
                await self.publish(own, room)
        except OSError as error:
            log.warning("layers cannot be shared in %s: %s", self.folder, error.strerror)

    async def _is_own(self, layer: PackJob, leases: contextlib.AsyncExitStack) -> bool:
        """Wait for the file or for its lease, which is then kept until `leases` is closed. Return whether it is to be made."""
        path = self.path(layer.name)
        held = await leases.enter_async_context(shared_lease(path.with_suffix(".lease"), path.exists))
        return held and not await asyncio.to_thread(path.exists)

    async def publish(self, layers: Sequence[PackJob], room: FillRoom) -> None:
        """Make the files of unpacked layers whose leases the caller has, as far as they are not there."""
        growing = dict[str, Path]()
        try:
            for one in await asyncio.to_thread(self._missing, layers):
                path = self.path(one.name)
                await asyncio.to_thread(_remove_leftovers, path)
                growing[one.name] = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            jobs = [one.to_json(growing[one.name]) for one in layers if one.name in growing]
            result = await run_child("rollyard.images.pack_main", {"layers": jobs}, room) if jobs else {}
            for name in list(growing)[: result.get("packed", 0)]:
                growing[name].rename(self.path(name))
            if "failed" in result:
                log.warning("layers cannot be shared in %s: %s", self.folder, result["failed"])
        except OSError as error:
            log.warning("layers cannot be shared in %s: %s", self.folder, error.strerror)
        finally:
            for path in growing.values():
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _missing(self, layers: Sequence[PackJob]) -> list[PackJob]:
        return [one for one in layers if not _touched(self.path(one.name))]

    async def _is_complete(self, path: Path) -> bool:
        """Wait for the end of the file, if it is missing. Delete a damaged file."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAG_SECONDS
        while True:
            try:
                await asyncio.to_thread(_check, path)
            except FileNotFoundError:
                return False
            except IncompleteFlatLayer as error:
                if loop.time() >= deadline:
                    await self.discard(path.name.removesuffix(".tar.zst"), str(error))
                    return False
            except BrokenFlatLayer as error:
                await self.discard(path.name.removesuffix(".tar.zst"), str(error))
                return False
            else:
                return True
            await asyncio.sleep(LAG_POLL_SECONDS)


def _touched(path: Path) -> bool:
    """Note a use of the file, for `prune`. Return whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:
        return path.exists()
    return True


def _check(path: Path) -> None:
    try:
        opened = open_regular(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise BrokenFlatLayer("it is not a file") from None
        raise
    with opened as file:
        read_index(file)


def _remove_leftovers(path: Path) -> None:
    """Delete the incomplete files of dead nodes. A slow node that is taken for dead finds that it cannot rename."""
    for left in path.parent.glob(f".{path.name}.*"):
        left.unlink(missing_ok=True)
