"""The node agent's side of the sandbox starter."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.sandbox_account import sandbox_account

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
END_SECONDS = 5.0
_ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py")))


@dataclass(frozen=True)
class WritableRoot:
    """A root file system for one sandbox, mounted in a mount namespace around the launcher. Everything that the sandbox
    writes is in one tmpfs. So one limit holds for all folders together.

    Below `place` the launcher finds `root`, the image's layers under an overlay, and `dev`, the folder of devices.
    """

    place: str
    """Empty folder, on which the tmpfs is mounted."""
    layers: Sequence[str]
    """Folders that together are the image, the topmost first."""
    folders: Mapping[str, int]
    """Folders that the sandbox has although the image may lack them, with their modes. The paths are relative, and no part of
    them is a symbolic link."""
    size: int
    inodes: int
    terminals: int
    """Greatest number of pseudo-terminals."""
    devices: Sequence[tuple[str, str]] = ()
    """Further devices: path on this machine, and name in `dev`."""
    fuse: str | None = None
    """fuse-overlayfs, which mounts the overlay in place of the kernel."""


@dataclass(frozen=True)
class OverlayRoot:
    """An overlay at the folder's `root`, mounted in a mount namespace around the launcher. Its changes stay."""

    folder: str
    options: str
    """Options of the mount. Paths in them are below `folder`."""
    fuse: str | None = None
    """fuse-overlayfs, which mounts the overlay in place of the kernel."""


@dataclass(frozen=True)
class Launch:
    """The launcher's command line, and what is around it."""

    argv: Sequence[str]
    root: WritableRoot | None = None
    overlay: OverlayRoot | None = None
    cgroup: str | None = None
    """Folder of the cgroup in which the launcher starts."""


def run_alone(launch: Launch, env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a launcher to its end, without a starter; its errors are in `stdout`. Blocks, at most for `seconds`.

    Raises OSError and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        alone(launch, env), env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        errors="replace", timeout=seconds, check=False,
    )  # fmt: skip


def alone(launch: Launch, env: Mapping[str, str]) -> list[str]:
    """Return the command that becomes a launcher, without a starter."""
    return [*_ARGV, _request(launch, env)]


def _request(launch: Launch, env: Mapping[str, str]) -> str:
    account = sandbox_account()
    changed = (account.uid, account.gid) if account.credentials else None
    root = launch.root and vars(launch.root)
    request = {
        "argv": launch.argv, "root": root, "overlay": launch.overlay and vars(launch.overlay), "cgroup": launch.cgroup,
        "account": changed, "env": dict(env),
    }  # fmt: skip
    return json.dumps(request)


class StartedProcess:
    """A child of this process that the starter started. It is waited for on the event loop."""

    def __init__(self, pid: int) -> None:
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.status: int | None = None
        """Exit code once the process has ended; negative for a signal."""
        self._handle = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._handle, self._reap, loop)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, even if the event loop has not seen it yet."""
        if self._ended.done():
            return True
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    async def wait(self) -> None:
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._handle)
        os.close(self._handle)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(None)


class SandboxStarter:
    """The starter's process. It starts with the first sandbox. If it is gone, the next call starts another. All launchers run
    under the account of sandboxes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env`: environment of the launchers, and of the starter."""
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def start(self, launch: Launch, stdin: int, output: int) -> StartedProcess:
        """Start a launcher. `stdin` and `output` are file descriptors. Do not cancel: the process would not be waited for.

        Raises SandboxStartFailed. If the starter ended before it answered, the launcher may have been started.
        """
        async with self._turn:
            answer = await self._ask(_request(launch, self._env).encode(), [stdin, output])
        if "error" in answer:
            raise SandboxStartFailed(f"{launch.argv[0]} cannot be started: {answer['error']}")
        return StartedProcess(answer["pid"])

    async def _ask(self, packet: bytes, fds: list[int]) -> dict[str, Any]:
        sock = self._socket or self._open()
        try:
            try:
                socket.send_fds(sock, [packet], fds)
            except ConnectionError:
                sock = self._open()
                socket.send_fds(sock, [packet], fds)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await asyncio.get_running_loop().sock_recv(sock, 1 << 12)
        except (ConnectionError, TimeoutError):
            answer = b""
        if not answer:
            self._end()
            raise SandboxStartFailed("the sandbox starter was killed: start the sandbox again")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _open(self) -> socket.socket:
        if self._process is not None:
            self._end()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with its:
            # Launchers end with the thread that starts the starter: --die-with-parent of bubblewrap. It is the loop's.
            self._process = subprocess.Popen(
                _ARGV, stdin=its.fileno(), stdout=subprocess.DEVNULL, env=self._env, cwd="/"
            )
        return self._socket

    def _end(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.kill()
            log.warning("the sandbox starter ended with status %s; another starts", self._process.wait())
            self._process = self._socket = None

    def close(self) -> None:
        """End the starter. The launchers live on."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self._process.kill()
            self._process.wait()
            self._process = self._socket = None
