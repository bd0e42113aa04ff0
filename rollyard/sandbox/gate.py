"""The gate: the Unix socket through which a sandbox agent passes open files to the sandbox's owner.

Each message on the gate has the ticket of the call that asked for the files. Files of a call that was cancelled meanwhile
are closed, so no other call gets them.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Iterable
from typing import Self

from rollyard.core.errors import SandboxLost
from rollyard.sandbox_agent.inside_listener import TICKET

MOST_FILES = 3
"""Greatest number of open files in one message."""


class Arrival:
    """Open files that one call expects. Leaving the block closes the files, unless they were taken."""

    def __init__(self, ticket: int, forget: Callable[[int], object]) -> None:
        self.ticket = ticket
        self.files: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._forget = forget
        self._taken = False

    async def take(self) -> list[int]:
        """Wait for the files, which then belong to the caller. Raises SandboxLost."""
        files = await self.files
        self._taken = True
        return files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget(self.ticket)
        if not self.files.done():
            self.files.cancel()
        elif not self._taken and not self.files.cancelled() and self.files.exception() is None:
            close_all(self.files.result())


class Gate:
    def __init__(self, sock: socket.socket) -> None:
        """`sock`: the owner's end; the gate owns it."""
        self._sock = sock
        self._sock.setblocking(False)
        self._tickets = itertools.count(1)
        self._expected: dict[int, Arrival] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._receive)

    def expect(self) -> Arrival:
        """Return an arrival with a new ticket, for use as a context manager."""
        ticket = next(self._tickets)
        self._expected[ticket] = arrival = Arrival(ticket, lambda number: self._expected.pop(number, None))
        return arrival

    def send(self, number: int, file: int) -> None:
        """Pass an open file to the sandbox agent, for the call with this number. Raises OSError."""
        socket.send_fds(self._sock, [number.to_bytes(4, "big")], [file])

    def close(self) -> None:
        """Calls that still wait for files get SandboxLost. A second call has no effect."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for arrival in self._expected.values():
            if not arrival.files.done():
                arrival.files.set_exception(SandboxLost("the sandbox was closed"))
                arrival.files.exception()  # mark the error as read: the caller may have stopped waiting

    def _receive(self) -> None:
        while True:
            try:
                ticket, files = self._message()
            except BlockingIOError:
                return
            if ticket is None:
                self._loop.remove_reader(self._sock.fileno())
                return
            arrival = self._expected.get(ticket)
            if arrival is not None and not arrival.files.done():
                arrival.files.set_result(files)
            else:
                close_all(files)

    def _message(self) -> tuple[int | None, list[int]]:
        """Return the ticket and the files of the next message; no ticket if the sandbox agent is gone."""
        files = array.array("i")
        try:
            room = socket.CMSG_SPACE(MOST_FILES * files.itemsize)
            data, ancillary, _, _ = self._sock.recvmsg(TICKET.size, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None, []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
        return TICKET.unpack(data)[0] if len(data) == TICKET.size else None, list(files)


def close_all(files: Iterable[int]) -> None:
    for fd in files:
        os.close(fd)
