"""Start of sandboxes. `SandboxFactory` starts a `Sandbox`, which ends when it is closed or when this process dies."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from rollyard.core.errors import SandboxLost, SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.images.pinned_image import PinnedImage
from rollyard.images.settings import CacheSettings
from rollyard.sandbox import egress_proxy
from rollyard.sandbox.base import Root, Runtime, SandboxSpec
from rollyard.sandbox.bundled_python import own_python, sandbox_agent_argv
from rollyard.sandbox.cgroups import SandboxCgroups
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT
from rollyard.sandbox.gate import Gate
from rollyard.sandbox.gpus import Gpu, GpuCounter, TakenGpus, allocated_gpus, visible_gpus
from rollyard.sandbox.images import Images, PinnedRoot, with_certificates, with_name_service
from rollyard.sandbox.launcher import Launcher
from rollyard.sandbox.memory_guard.client import MemoryGuard
from rollyard.sandbox.process_refusals import ProcessRefusals
from rollyard.sandbox.sandbox import Sandbox, folder_identity
from rollyard.sandbox.sandbox_connection import SandboxConnection
from rollyard.sandbox.starter.client import SandboxStarter
from rollyard.sandbox_agent.frames import PROTOCOL, Header

START_SECONDS = 120.0


class SandboxFactory:
    """Starts sandboxes with one runtime. Closing the factory ends the sandboxes that are still open."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        cache: Path | None = None,
        image_settings: CacheSettings | None = None,
        cgroups: SandboxCgroups | None = None,
    ) -> None:
        """`cache`: folder for everything that is built once on a node. `cgroups`: cgroup of the sandboxes; None: the memory
        guard alone limits their memory. The factory closes it."""
        self._cgroups = cgroups
        self._runtime = runtime
        self._cache = cache or node_cache()
        self.images = Images(self._cache, image_settings)
        self._own_python: Path | None = None
        self.preparing = ""
        """Work that is done once on this node before a sandbox can start; empty if there is none."""
        self._guard = MemoryGuard()
        self._refusals = ProcessRefusals()
        self._starter = SandboxStarter(LAUNCH_ENVIRONMENT)
        self._gpus = GpuCounter(allocated_gpus())
        self._open: set[Sandbox] = set()
        self._started = 0

    async def start(self, spec: SandboxSpec, *, pinned: PinnedImage | None = None, with_bash: bool = True) -> Sandbox:
        """Start a sandbox and wait until its sandbox agent answers. Raises ImageNotFound, ImageUnavailable or
        SandboxStartFailed. `pinned`: the image, if the caller pins it. `with_bash`: bash starts too, and may not be ready
        yet."""
        if self._own_python is None or not self._own_python.is_dir():  # a cleaner of old files may have deleted it
            self.preparing = (
                f"copies Python and IPython for the inside of sandboxes to {self._cache}, once on this node"
            )
            try:
                self._own_python = await asyncio.to_thread(own_python, self._cache)
            finally:
                self.preparing = ""
        image = await self.images.pin(spec.image, pinned)
        gpus = None
        try:
            gpus = await self._gpus.take(spec.gpus)
            return await self._start(spec, image, self._own_python, with_bash, gpus)
        except BaseException:
            image.release()
            if gpus is not None:
                gpus.release()
            raise

    async def start_from(self, spec: SandboxSpec, snapshot: BinaryIO) -> Sandbox:
        """Start a sandbox with the files of a snapshot that was taken from a sandbox of the same image. Raises the errors
        of `start`, and SnapshotUnusable."""
        sandbox = await self.start(spec, with_bash=False)  # its folder and its program may change
        try:
            await sandbox.restore(snapshot)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _start(
        self, spec: SandboxSpec, image: PinnedRoot, own: Path, with_bash: bool, gpus: TakenGpus
    ) -> Sandbox:
        root = image.root
        if spec.image is None and (spec.host_network or spec.allowed_hosts):
            root = with_certificates(root)
        if spec.host_network:
            root = with_name_service(root)
        try:
            launch = self._runtime.command(
                root, spec.limits, own, sandbox_agent_argv(own), host_network=spec.host_network, gpus=gpus.gpus
            )
        except OSError as error:  # the runtime makes its own files again if somebody has deleted them
            raise SandboxStartFailed(f"{error.filename or self._cache} cannot be made: {error.strerror}") from None
        folders = own / sys.platlibdir, *root.layers
        files = await asyncio.to_thread(lambda: [(path, folder_identity(path)) for path in folders])
        sandbox_id = secrets.token_hex(6)
        try:
            cgroup = self._cgroups.make(sandbox_id, spec.limits) if self._cgroups is not None else None
        except OSError as error:
            raise SandboxStartFailed(f"no cgroup for a sandbox can be made: {error}") from None
        launcher, ours = await Launcher.start(self._starter, launch, cgroup)
        gate, connection = _send_gate(ours), SandboxConnection()
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
            await self._greet(connection, launcher, {**self._settings(spec, root, gpus.gpus), "with_bash": with_bash})
            self._guard.watch(sandbox_id, launcher.pid, spec.limits.memory_bytes)
        except BaseException:
            self._guard.forget(sandbox_id)
            connection.abort("the sandbox was closed before it was ready")
            ours.close()
            gate.close()
            await launcher.end()
            raise
        sandbox = Sandbox(sandbox_id, launcher, connection, gate, self._guard, spec, image, gpus, self._refusals, files)
        self._open = {other for other in self._open if other.alive} | {sandbox}
        if spec.allowed_hosts:
            try:
                await sandbox.open_egress()
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def has_current_image(self, sandbox: Sandbox) -> bool:
        """Return whether a new sandbox of this image would have the same root. No registry is asked: the answer is no if
        the image's tag must be looked up again."""
        image = sandbox.spec.image
        return image is None or await asyncio.to_thread(self.images.is_current, image, sandbox.image)

    async def close(self) -> None:
        async with asyncio.TaskGroup() as group:
            for sandbox in self._open:
                group.create_task(sandbox.close())
        self._open = set()
        await self.images.cache.close()
        await asyncio.to_thread(self._guard.close)
        await asyncio.to_thread(self._starter.close)
        self._refusals.close()
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _greet(self, connection: SandboxConnection, launcher: Launcher, settings: Header) -> None:
        """Send the settings, and wait for the sandbox agent's hello."""
        try:
            connection.send(settings)
            async with asyncio.timeout(START_SECONDS):
                hello = await launcher.while_it_lives(connection.hello)
        except (SandboxLost, TimeoutError) as error:
            why = f": no answer within {START_SECONDS:g} s"
            if isinstance(error, SandboxLost):
                why = f": its process ended while its sandbox started{await launcher.how_it_ended()}"
            await launcher.end()
            raise SandboxStartFailed(
                f"{self._runtime.name} started no sandbox{launcher.last_output() or why}"
            ) from None
        if launcher.has_ended:  # bwrap was killed before it had tied its child to itself; the memory guard needs it
            raise SandboxStartFailed(f"the process of {self._runtime.name} ended while its sandbox started")
        if hello["protocol"] != PROTOCOL:
            raise SandboxStartFailed(
                f"the sandbox agent speaks protocol {hello['protocol']}, but the node agent speaks {PROTOCOL}"
            )

    def _settings(self, spec: SandboxSpec, root: Root, gpus: Sequence[Gpu]) -> Header:
        proxy = egress_proxy.ENVIRONMENT if spec.allowed_hosts else {}
        devices = {"CUDA_VISIBLE_DEVICES": visible_gpus(gpus)} if gpus else {}
        return {
            "env": {**proxy, **devices, **spec.env},
            "address_space": not gpus,
            "image_env": dict(root.env),
            "workdir": spec.workdir or root.workdir,
            "user": root.user if spec.user is None else spec.user,
            "memory_bytes": spec.limits.memory_bytes,
            "file_bytes": spec.limits.disk_bytes,
            "processes": spec.limits.processes,
            "cpus": self._next_cpus(math.ceil(spec.limits.cpus)),
        }

    def _next_cpus(self, count: int) -> list[int]:
        """Return the next `count` of the available CPUs in turn; an empty list means all of them."""
        usable = sorted(os.sched_getaffinity(0))
        if count >= len(usable):
            return []
        first = self._started * count
        self._started += 1
        return [usable[(first + offset) % len(usable)] for offset in range(count)]


def _send_gate(ours: socket.socket) -> Gate:
    """Return our end of a new Unix socket. The first byte of the sandbox agent's standard input carries the other end."""
    gate, its = socket.socketpair()
    # an error is ignored here: if the sandbox agent has died already, the wait for its hello fails
    with its, suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(ours, [b"G"], [its.fileno()])
    return Gate(gate)
