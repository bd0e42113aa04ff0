"""Sandboxes of one node agent: the runtime that works on this node, its limits, and how many sandboxes fit."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Self

from rollyard.core.errors import SandboxStartFailed
from rollyard.images.settings import CacheSettings
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.values.quantity import size_bytes
from rollyard.sandbox.cgroups import NoDelegation, SandboxCgroups
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.free_memory import reserve, whole_memory
from rollyard.sandbox.sandbox_factory import SandboxFactory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SandboxRoom:
    """Room for sandboxes on this node. It stays as it is until the job ends."""

    factory: SandboxFactory
    most: int
    """Number of sandboxes that fit into the memory that this process and its children may use."""
    capacity: int
    """Number of sandboxes that fit into the allocation."""
    memory_shortage: str
    """Sentence for the server; empty if the memory allows as many sandboxes as the cores."""
    image_shortage: str
    """Sentence for the server; empty if sandboxes can change the files of their images."""

    @classmethod
    async def find(cls, sandbox: SandboxTemplate, places: int) -> Self:
        """Find what works here. `places`: number of sandboxes that fit into the allocation's cores, and into its memory if
        the pool sets it. Raises SandboxStartFailed."""
        try:
            runtime = await asyncio.to_thread(find_runtime, sandbox.runtime)
            cgroups = await asyncio.to_thread(_cgroups)
            factory = SandboxFactory(
                runtime,
                image_settings=CacheSettings(
                    cache_bytes=size_bytes(sandbox.images.cache_size),
                    shared_folder=sandbox.images.shared_folder,
                    credentials_file=sandbox.images.credentials_file,
                    insecure_registries=sandbox.images.insecure_registries,
                ),
                cgroups=cgroups,
            )
        except OSError as error:
            raise SandboxStartFailed(f"{error.filename or 'the cache'} cannot be used: {error.strerror}") from error
        if runtime.shortage:
            log.warning("this node %s", runtime.shortage)
        size = size_bytes(sandbox.memory)
        most = memory_room(size, places)
        return cls(factory, most, min(places, most), memory_shortage(size, most, places), runtime.shortage)


def memory_room(sandbox_bytes: int, places: int) -> int:
    """Return how many sandboxes fit into the job's memory, at most `places`."""
    whole = whole_memory()
    if places * sandbox_bytes <= whole:
        return places
    return max(1, (whole - reserve(whole)) // max(1, sandbox_bytes))


def memory_shortage(sandbox_bytes: int, room: int, places: int) -> str:
    """Return a sentence if the job's memory has room for fewer sandboxes than there are places, else nothing."""
    if room >= places:
        return ""
    words = (
        f"has memory for {room} of {places} sandboxes: it has {whole_memory() / (1 << 30):.1f} GiB of memory, and each "
        f"sandbox may take {sandbox_bytes / (1 << 30):.1f} GiB"
    )
    log.warning("this node agent %s; beyond their least widths the stages get no more workers", words)
    return words


def _cgroups() -> SandboxCgroups | None:
    """Return the cgroup for sandboxes; None if cgroups cannot limit them here."""
    try:
        cgroups = SandboxCgroups.enter()
    except NoDelegation as why:
        log.info("the memory guard limits the memory of sandboxes, and no cgroup: %s", why)
        return None
    log.info("each sandbox has a cgroup with limits in %s", cgroups.folder)
    return cgroups
