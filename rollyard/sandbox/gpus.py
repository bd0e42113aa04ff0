"""The GPUs of the allocation, counted out to sandboxes. A GPU is in one sandbox at a time."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed

WAIT_SECONDS = 60.0
"""Seconds for which a start waits for GPUs of a sandbox that is ending."""
NODE_FOLDER = Path("/dev")
SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device nodes that a program needs for each GPU."""


_NAMES_A_GPU = re.compile(r"[0-9]+$|GPU-|MIG-")
"""CUDA's names of devices: a number, or the UUID of a GPU or of a part of a GPU."""


@dataclass(frozen=True)
class Gpu:
    name: str
    """Name in CUDA_VISIBLE_DEVICES of the node agent."""
    node: Path | None
    """Device node; None if the name does not tell it."""


def allocated_gpus(environ: Mapping[str, str] = os.environ, folder: Path = NODE_FOLDER) -> list[Gpu]:
    """Return the GPUs that Slurm gave to this job.

    CUDA_VISIBLE_DEVICES has the names that CUDA takes. Where Slurm hides other jobs' devices, these names count from 0, but
    SLURM_JOB_GPUS has the numbers of the device nodes. Like CUDA, this function ignores a name that is no GPU (Slurm writes
    NoDevFiles, others -1) and every name after it. Outside of Slurm, and without these variables: all GPUs of the node.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        numbers = sorted(int(path.name[6:]) for path in folder.glob("nvidia[0-9]*") if path.name[6:].isdigit())
        names = [str(number) for number in numbers]
    else:
        given = (name.strip() for name in named.split(",") if name.strip())
        names = list(takewhile(_NAMES_A_GPU.match, given))
    nodes = [name.strip() for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name.strip()]
    if len(nodes) != len(names) or not all(node.isdigit() for node in nodes):
        nodes = names
    paths = [folder / f"nvidia{node}" if node.isdigit() else None for node in nodes]
    return [
        Gpu(name, path if path is not None and path.exists() else None) for name, path in zip(names, paths, strict=True)
    ]


class TakenGpus:
    """The GPUs of one sandbox."""

    def __init__(self, gpus: Sequence[Gpu], give_back: Callable[[Sequence[Gpu]], None]) -> None:
        self.gpus = tuple(gpus)
        self._held = list(gpus)
        self._give_back = give_back

    def release(self) -> None:
        """Give the GPUs back. A second call has no effect."""
        held, self._held = self._held, []
        self._give_back(held)


class GpuCounter:
    """Counts out the GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._all = len(gpus)
        self._free = list(reversed(gpus))
        self._changed = asyncio.Event()

    async def take(self, count: int) -> TakenGpus:
        """Raises SandboxStartFailed if the allocation has fewer GPUs, or if too few become free in WAIT_SECONDS."""
        if count > self._all:
            raise SandboxStartFailed(
                f"a sandbox needs {count} GPUs (`sandbox.gpus`), but this node agent has {self._all}: raise "
                "`allocation.gpusPerNode`, or lower `sandbox.gpus`"
            )
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while len(self._free) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise SandboxStartFailed(
                f"{len(self._free)} of {self._all} GPUs are free after {WAIT_SECONDS:g} s, and a sandbox needs {count}"
            ) from None
        return TakenGpus([self._free.pop() for _ in range(count)], self._return)

    def _return(self, gpus: Sequence[Gpu]) -> None:
        self._free += gpus
        self._changed.set()


def visible_gpus(gpus: Sequence[Gpu]) -> str:
    """Return CUDA_VISIBLE_DEVICES in a sandbox with the device nodes of `node_binds`."""
    if all(gpu.node is not None for gpu in gpus):
        return ",".join(map(str, range(len(gpus))))
    return ",".join(gpu.name for gpu in gpus)


def node_binds(gpus: Sequence[Gpu], folder: Path = NODE_FOLDER) -> list[tuple[str, str]]:
    """Return the device nodes of these GPUs, and their places in the sandbox. If a GPU's node is unknown: all nodes."""
    if not gpus:
        return []
    if all(gpu.node is not None for gpu in gpus):
        own = [gpu.node for gpu in gpus if gpu.node is not None]
        folder = own[0].parent
    else:
        own = sorted(folder.glob("nvidia[0-9]*"))
    shared = [path for name in SHARED_NODES if (path := folder / name).exists()]
    return [(str(path), f"/dev/{path.name}") for path in (*own, *shared)]
