"""Launcher of one sandbox: the runtime's process on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rollyard.core.errors import SandboxLost, SandboxStartFailed
from rollyard.sandbox.cgroups import SandboxCgroup
from rollyard.sandbox.starter.client import Launch, SandboxStarter, StartedProcess
from rollyard.sandbox_agent.frames import Header

END_SECONDS = 5.0
EXIT_SECONDS = 0.5
"""Seconds to wait for the exit code of a sandbox's runtime, once the sandbox has ended."""


class Launcher:
    """The runtime's process on the host, and its output."""

    def __init__(self, process: StartedProcess, complaints: int, cgroup: SandboxCgroup | None) -> None:
        self._process = process
        self.cgroup = cgroup
        self._complaints: int | None = complaints
        self._words = ""

    @classmethod
    async def start(
        cls, starter: SandboxStarter, launch: Launch, cgroup: SandboxCgroup | None
    ) -> tuple[Launcher, socket.socket]:
        """Run `launch` with one end of a new socket as its standard input; return the other end too. The launcher starts in
        `cgroup`, and removes it at its end."""
        if cgroup is not None:
            launch = replace(launch, cgroup=str(cgroup.folder))
        ours, its = socket.socketpair()
        complaints = os.memfd_create("complaints")
        with its:
            starting = asyncio.ensure_future(starter.start(launch, its.fileno(), complaints))
            try:
                process = await asyncio.shield(starting)
            except SandboxStartFailed:
                ours.close()
                os.close(complaints)
                if cgroup is not None:
                    await cgroup.remove()
                raise
            except asyncio.CancelledError:
                # If bwrap is killed before it has set up its child, the child stays for ever.
                (done,) = await asyncio.gather(starting, return_exceptions=True)
                its.close()
                ours.close()
                if isinstance(done, BaseException):
                    os.close(complaints)
                    if cgroup is not None:
                        await cgroup.remove()
                else:
                    await cls(done, complaints, cgroup).end()
                raise
        return cls(process, complaints, cgroup), ours

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    async def end(self) -> None:
        """Wait until the process ends, and kill it after END_SECONDS. The process ends by itself once its socket is
        closed."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self.cgroup is not None:
            await self.cgroup.remove()
        if self._complaints is not None:
            self._words = self.last_output()
            os.close(self._complaints)
            self._complaints = None

    async def while_it_lives(self, awaited: asyncio.Future[Header]) -> Header:
        """Return what is awaited. Raises SandboxLost if the process ends before: a child that bwrap left could keep the socket
        open for ever."""
        end = asyncio.ensure_future(self._process.wait())
        either: list[asyncio.Future[Any]] = [awaited, end]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if not awaited.done():
            raise SandboxLost("its launcher ended")
        return awaited.result()

    async def how_it_ended(self) -> str:
        """Return the end of a sentence about the process's exit code; empty if it goes on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        code = self._process.status
        if code is None:
            return ""
        # A runtime passes on the signal that has ended process 1 of the sandbox.
        number = -code if code < 0 else code - 128 if code > 128 else 0
        return f", by signal {number}" if number else f", with exit code {code}"

    def last_output(self) -> str:
        """Return ": " and the last output of the launcher and the sandbox agent, at most 2000 bytes; empty without output."""
        if self._complaints is None:
            return self._words
        size = os.fstat(self._complaints).st_size
        text = os.pread(self._complaints, 2000, max(0, size - 2000)).decode(errors="replace").strip()
        return f": {text}" if text else ""
