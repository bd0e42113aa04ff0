"""Unpacking of layers by a process of its own, so that a node agent's event loop goes on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import ImageUnavailable
from rollyard.host.sandbox_account import Account, sandbox_account
from rollyard.images.base import DiskFull, FillRoom, too_big

UNPACK_SECONDS = 3600.0


class BrokenLayer(Exception):
    """A layer, by its number, that cannot be unpacked."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


async def unpack_layers(image: str, layers: Sequence[Path], root: Path, room: FillRoom) -> None:
    """Unpack gzip, zstd or plain tar files, the lowest layer first, into the new folder `root`.

    Raises ImageUnavailable, DiskFull, and BrokenLayer for a layer that is damaged.
    """
    job = {"layers": [str(layer) for layer in layers], "root": str(root)}
    _make_root(root, sandbox_account())
    await _unpacked("rollyard.images.unpack_main", job, image, room, root)


@dataclass(frozen=True)
class LayerJob:
    """One layer of an image."""

    root: Path
    """Folder in which its files are, or are to be."""
    whole: bool
    """Whether it begins with links to all files of the layers below."""
    file: Path | None = None
    """gzip, zstd or plain tar file, if it is to be unpacked."""
    packed: bool = False
    """Whether the file is one of the shared tier (`flat_layer.py`)."""
    bytes: int = 0
    """Bytes on disk, if it is unpacked."""


async def unpack_differences(image: str, layers: Sequence[LayerJob], room: FillRoom) -> list[dict[str, Any]]:
    """Unpack layers, the lowest first, each into the new folder `root` of its own. Return the values `bytes`, `names` and
    `whole` of each that was unpacked (`unpacked_layers.py`). Raises as `unpack_layers`."""
    job = [{**asdict(one), "root": str(one.root), "file": one.file and str(one.file)} for one in layers]
    for one in layers:
        if one.file is not None:
            _make_root(one.root, sandbox_account())
    result = await _unpacked("rollyard.images.unpack_main", {"differences": job}, image, room, layers[-1].root)
    made: list[dict[str, Any]] = result["made"]
    return made


async def unpack_squashfs(
    image: str, file: Path, offset: int, program: tuple[str, str], folder: Path, room: FillRoom
) -> dict[str, str]:
    """Unpack the SquashFS file system at an offset of a file into the new folder `root` in `folder`. `program`: name and
    path of unsquashfs or Apptainer. Return the environment variables that the image keeps.

    Raises ImageUnavailable and DiskFull.
    """
    account, root = sandbox_account(), folder / "root"
    _make_root(root, account)
    os.chown(folder, account.uid, account.gid)  # Apptainer makes `root` itself, and writes beside it
    job = {"file": str(file), "offset": offset, "root": str(root), "program": program[0], "path": program[1]}
    try:
        result = await _run_as_account("rollyard.images.unsquash_main", {**job, "home": str(folder)}, image, root, room)
    finally:
        os.chown(folder, os.geteuid(), os.getegid())
    if "failed" in result:
        raise ImageUnavailable(image, f"it could not be unpacked into {root}: {result['failed']}")
    env: dict[str, str] = result["env"]
    return env


async def _unpacked(module: str, job: dict[str, Any], image: str, room: FillRoom, root: Path) -> dict[str, Any]:
    result = await _run_as_account(module, job, image, root, room)
    if "broken" in result:
        raise BrokenLayer(result["broken"], result["why"])
    if "failed" in result:
        raise ImageUnavailable(image, f"it could not be unpacked into {root}: {result['failed']}")
    return result


async def _run_as_account(module: str, job: dict[str, Any], image: str, root: Path, room: FillRoom) -> dict[str, Any]:
    account = sandbox_account()
    result = await run_child(module, {**job, "limit": room.limit_bytes, "uid": account.uid, "gid": account.gid}, room)
    if "disk_full" in result:
        raise DiskFull(image, root)
    if "too_big" in result:
        raise too_big(image, room.limit_bytes)
    return result


def _make_root(root: Path, account: Account) -> None:
    root.mkdir()
    root.chmod(0o755)
    os.chown(root, account.uid, account.gid)


async def run_child(module: str, job: dict[str, Any], room: FillRoom) -> dict[str, Any]:
    """Run a module with a job, and return the object that it prints. The process is killed if this call is cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, json.dumps(job), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, pass_fds=[room.lock_fd, *room.layer_fds],
    )  # fmt: skip
    try:
        async with asyncio.timeout(UNPACK_SECONDS):
            output, complaints = await process.communicate()
    except TimeoutError:
        return {"failed": f"it took more than {UNPACK_SECONDS:g} s"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaints.decode(errors="replace").strip().splitlines()
        return {"failed": lines[-1] if lines else f"its process ended with status {process.returncode}"}
    result: dict[str, Any] = json.loads(output)
    return result
