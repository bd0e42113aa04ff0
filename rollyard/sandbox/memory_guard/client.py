"""The node agent's side of the memory guard."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.sandbox.free_memory import KernelKillCounter
from rollyard.sandbox.memory_guard import messages

log = logging.getLogger(__name__)

END_SECONDS = 5.0


@dataclass(frozen=True)
class OverLimit:
    """Processes of a sandbox were ended, because the sandbox used more memory than its limit."""

    limit: int
    used: int
    files: int
    """Bytes of `used` that are files: everything that a sandbox writes is in memory."""
    sockets: int
    """Bytes of `used` that are sockets and their buffers."""
    ended: int
    """Number of ended processes."""
    named: list[str]
    """The largest of them."""
    free: int | None = None
    """Bytes left in the allocation, if they are the reason: of all sandboxes this one used the most memory."""

    def __str__(self) -> str:
        who = ", ".join(self.named) + (", and others" if self.ended > len(self.named) else "")
        parts = [
            f"{_size(part)} of it in {name}"
            for part, name in ((self.files, "files"), (self.sockets, "sockets"))
            if part > self.limit // 8
        ]
        files = f" ({', '.join(parts)})" if parts else ""
        if self.free is not None:
            return (
                f"the allocation had only {_size(self.free)} of memory left, and this sandbox used the most: "
                f"{_size(self.used)}{files}; ended: {who}"
            )
        return (
            f"the sandbox used {_size(self.used)} of memory{files}, and its limit is {_size(self.limit)}; ended: {who}"
        )


@dataclass(frozen=True)
class KernelKills:
    """The kernel ended processes of the allocation, because memory ran out faster than the memory guard could act."""

    count: int

    def __str__(self) -> str:
        return (
            f"the memory of the allocation ran out, and the kernel ended {self.count} of the processes in its sandboxes, "
            "maybe some of this one"
        )


class MemoryGuard:
    """The guard's process, and what it has reported. The process starts with the first sandbox. If it is gone, the next
    call starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._watched: dict[str, dict[str, Any]] = {}
        """Sandbox -> the message that tells the guard of it."""
        self._reports: dict[str, list[OverLimit]] = {}
        self.refusals = 0
        """Number of times that the guard was refused a thread, as of the last `take_reports`."""
        self._kill_counter = KernelKillCounter()
        self._kernel_kills: dict[str, int] = {}
        """Sandbox -> number of processes that the kernel had ended when the sandbox was last asked about."""

    def watch(self, sandbox: str, launcher: int, limit: int) -> None:
        """Keep a sandbox within `limit` bytes. `launcher`: process id of its launcher."""
        message = {"watch": sandbox, "launcher": launcher, "limit": limit}
        self._watched[sandbox] = message
        self._kernel_kills[sandbox] = self._kill_counter.count()
        self._send(message)

    def forget(self, sandbox: str) -> None:
        if self._watched.pop(sandbox, None) is not None:
            self._reports.pop(sandbox, None)
            del self._kernel_kills[sandbox]
            self._send({"forget": sandbox})

    def take_reports(self, sandbox: str) -> Sequence[OverLimit | KernelKills]:
        """Return what was reported of a sandbox since the last call."""
        if self._socket is not None:
            try:
                for message in messages.received(self._socket):
                    self._add(**message)
            except EOFError:
                self._start()
        reports = self._reports.pop(sandbox, [])
        if sandbox not in self._watched:
            return reports
        before, ended = self._kernel_kills[sandbox], self._kill_counter.count()
        if ended == before:
            return reports
        self._kernel_kills[sandbox] = ended
        return [*reports, KernelKills(ended - before)]

    def close(self) -> None:
        self._kill_counter.close()
        if self._process is not None and self._socket is not None:
            self._socket.close()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = self._socket = None

    def _add(self, over: str = "", refusals: int = 0, **report_of: Any) -> None:
        self.refusals += refusals
        if (watched := self._watched.get(over)) is not None:
            report = OverLimit(watched["limit"], **report_of)
            log.info("sandbox %s: %s", over, report)
            self._reports.setdefault(over, []).append(report)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            if self._socket is None:
                self._start()
            else:
                messages.send(self._socket, message)
        except (ConnectionError, BlockingIOError):  # the guard is gone, or hangs
            self._start()

    def _start(self) -> None:
        """Start the process, and give it all sandboxes."""
        if self._process is not None:
            self._process.kill()
            log.warning("the memory guard ended with status %s; another starts", self._process.wait())
        if self._socket is not None:
            self._socket.close()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with its:
            argv = [sys.executable, "-m", "rollyard.sandbox.memory_guard"]
            self._process = subprocess.Popen(argv, stdin=its.fileno(), stdout=subprocess.DEVNULL)
        messages.send(self._socket, *self._watched.values())


def _size(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
