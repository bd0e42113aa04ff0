"""The host's side of a program that a person starts in a sandbox: its terminal or pipes, its end, its signals.

Reads and writes never block the event loop. Output that nobody reads waits in the kernel, and the program waits with it.
"""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from rollyard.core.aio import end_tasks, running
from rollyard.sandbox.gate import Gate
from rollyard.sandbox_agent.frames import Header

CHUNK = 32 << 10
LAST_OUTPUT_SECONDS = 0.5
"""Once a program has ended, its output is read until nothing comes for so long. A process that it left behind may hold its
terminal or pipes open for ever."""
STDIN, STDOUT, STDERR = 0, 1, 2
BOTH_OUTPUTS = ("/bin/sh", "-c", 'exec "$0" "$@" 2>&1')
"""Words in front of a command that put its standard error into its standard output."""
KEPT_BYTES = 64 << 10
"""Number of bytes of an output that are kept at its beginning, and at its end."""
PAUSE_SECONDS = 0.001
"""Pause between two reads of a program that prints more than anybody keeps."""
Call = Callable[[Header, bytes, float | None], Awaitable[tuple[Header, bytes]]]


class ProgramRefused(Exception):
    """The sandbox cannot start the program. The message says what one can do."""


@dataclass(frozen=True)
class ProgramSpec:
    argv: Sequence[str]
    tty: bool = False
    """True: the program gets a terminal. False: it gets three pipes."""
    rows: int = 24
    columns: int = 80
    term: str = ""
    """Type of the terminal, for the variable TERM."""
    own: str = ""
    """Module of the sandbox agent that our Python runs with `argv` as its arguments; empty: `argv` names a program."""


class Program:
    """A program that was started."""

    def __init__(self, ticket: int, call: Call, exited: asyncio.Future[int], files: list[int]) -> None:
        self.ended = exited
        """Exit code of the program, as in `subprocess`; negative for a signal. Fails with SandboxLost or ProgramRefused."""
        self.tty = len(files) == 1
        self._ticket = ticket
        self._call = call
        self._files = dict(zip((STDIN, STDOUT, STDERR), files * 2 if self.tty else files, strict=False))
        for fd in files:
            os.set_blocking(fd, False)

    @property
    def outputs(self) -> Sequence[int]:
        return [STDOUT] if self.tty else [STDOUT, STDERR]

    async def read(self, channel: int) -> bytes:
        """Return output, at most CHUNK bytes; empty at its end."""
        while True:
            fd = self._files.get(channel)
            if fd is None:
                return b""
            try:
                return os.read(fd, CHUNK)
            except BlockingIOError:
                if not await self._ready(fd):
                    return b""
            except OSError:
                return b""  # EIO: no process has the terminal open any more

    async def write(self, data: bytes) -> None:
        """Write to the program's standard input. If nobody will read it, the rest is dropped."""
        view = memoryview(data)
        while view:
            fd = self._files.get(STDIN)
            if fd is None:
                return
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await _wait_for(fd, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)
            except OSError:
                return

    async def run_to_end(self, data: bytes, timeout: float) -> tuple[bytes, int | None]:
        """Write `data`, close the standard input, and return the standard output, without the middle of a long one, and the
        exit code: None if the program runs longer than `timeout` seconds. Raises ProgramRefused, SandboxLost."""
        head, tail = bytearray(), bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout), running(self._feed(data)):
                while chunk := await self.read(STDOUT):
                    room = KEPT_BYTES - len(head)
                    head += chunk[:room]
                    tail += chunk[room:]
                    del tail[: -2 * KEPT_BYTES]
                    # `read` does not wait while there is output, and a flood must not hold up the event loop
                    await asyncio.sleep(PAUSE_SECONDS if tail else 0)
                return bytes(head + tail[-KEPT_BYTES:]), await asyncio.shield(self.ended)
        return bytes(head + tail[-KEPT_BYTES:]), None

    async def _feed(self, data: bytes) -> None:
        await self.write(data)
        self.end_input()

    def end_input(self) -> None:
        """Close the pipe to standard input. On a terminal the end of the input is a character, Ctrl-D."""
        if not self.tty and (fd := self._files.pop(STDIN, None)) is not None:
            asyncio.get_running_loop().remove_writer(fd)
            os.close(fd)

    def resize(self, rows: int, columns: int) -> None:
        if self.tty and (fd := self._files.get(STDOUT)) is not None:
            termios.tcsetwinsize(fd, (rows, columns))

    async def signal(self, number: int) -> None:
        """Signal the program's process group. Raises SandboxLost."""
        await self._call({"op": "signal", "ticket": self._ticket, "number": number}, b"", 60.0)

    async def close(self) -> None:
        """End the program if it still runs. Its processes end within a few seconds."""
        loop = asyncio.get_running_loop()
        for fd in set(self._files.values()):
            loop.remove_reader(fd)
            loop.remove_writer(fd)
            os.close(fd)
        self._files = {}
        await end_tasks(self.ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ready(self, fd: int) -> bool:
        """Wait until `fd` can be read; return False if the program has ended and no more output comes."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(_wait_for(fd, loop.add_reader, loop.remove_reader))
        try:
            either: list[asyncio.Future[Any]] = [waiting, self.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await asyncio.wait([waiting], timeout=LAST_OUTPUT_SECONDS)
            return waiting.done()
        finally:
            await end_tasks(waiting)


async def _wait_for(fd: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


async def start_program(spec: ProgramSpec, gate: Gate, call: Call) -> Program:
    """Start a program through the sandbox agent. Raises ProgramRefused, SandboxLost."""
    with gate.expect() as arrival:
        header: Header = {
            "op": "exec",
            "ticket": arrival.ticket,
            "argv": list(spec.argv),
            "own": spec.own,
            "tty": spec.tty,
            "size": [spec.rows, spec.columns],
            "term": spec.term,
        }
        ended = asyncio.ensure_future(_exit_code(call, header))
        try:
            either: list[asyncio.Future[Any]] = [ended, arrival.files]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not arrival.files.done():
                await ended  # raises, unless the reply was faster than the files
            files = await arrival.take()
        except BaseException:
            await end_tasks(ended)
            raise
    return Program(arrival.ticket, call, ended, files)


async def _exit_code(call: Call, header: Header) -> int:
    reply, _ = await call(header, b"", None)
    if "refused" in reply:
        raise ProgramRefused(reply["refused"])
    code: int = reply["exit_code"]
    return code
