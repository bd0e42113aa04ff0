"""One run of a task's test script, and the log of it.

The log goes through a pipe to the host while the script runs. So the code under test can print into the log, as the tests can,
and can take nothing back: no file in the sandbox holds the log, and what is printed after the end of the script is not read.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollyard.core.errors import TaskError
from rollyard.sandbox.program import STDERR, STDOUT, Program, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe.log_parsers.status import lines
from rollyard.tasks.swe.output_marks import START, between, numbered, waiting_at_start

MAX_LOG_BYTES = 16 << 20
"""Length of the log that is kept: its end."""
MAX_PRINTED_BYTES = 256 << 20
"""A script that prints more is ended."""


@dataclass(frozen=True)
class RunLog:
    output: bytes
    errors: bytes = b""
    """Output on standard error, if it is kept apart."""
    timed_out: bool = False
    too_long: bool = False

    def end(self, most: int) -> str:
        """Return the last characters for people, without control characters; at most `most`."""
        if most <= 0:
            return ""
        tail = (self.output[-8 * most :] + self.errors[-8 * most :]).decode("utf-8", "replace")
        return "\n".join(lines(tail)).strip()[-most:]


class _LogEnd:
    """The end of what a program prints."""

    def __init__(self, mark: bytes = b"") -> None:
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self._mark = mark
        self._last = b""
        self.total = 0
        self.marked = False
        """Whether the mark was printed."""
        self.marked_or_ended = asyncio.Event()

    def add(self, chunk: bytes) -> None:
        if self._mark and not self.marked:
            self._last = self._last[1 - len(self._mark) :] + chunk
            if self._mark in self._last:
                self.marked = True
                self.marked_or_ended.set()
        self._chunks.append(chunk)
        self._kept += len(chunk)
        self.total += len(chunk)
        while self._kept - len(self._chunks[0]) >= MAX_LOG_BYTES:
            self._kept -= len(self._chunks.popleft())

    def kept(self) -> bytes:
        return b"".join(self._chunks)[-MAX_LOG_BYTES:]


async def run_script(
    sandbox: Sandbox,
    repository: str,
    script: str,
    seconds: float,
    *,
    apart: bool = False,
    before_tests: Callable[[], Awaitable[None]] | None = None,
) -> RunLog:
    """Run the script in the repository, in a new bash with the image's environment. `apart`: keep standard error apart.
    `before_tests`: called while the script waits at the line that tells the start of the tests. Raises TaskError if the script
    cannot be written or started."""
    number = secrets.token_hex(16)
    path = f"/tmp/{number}.sh"
    head = f"cd {shlex.quote(repository)} || exit 125\nrm -f {path}\n" + ("" if apart else "exec 2>&1\n")
    marked = numbered(waiting_at_start(script) if before_tests is not None else script, number)
    try:
        await sandbox.write_file(path, (head + marked).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise TaskError(f"the test script cannot be written in a fresh sandbox: {error}") from error
    output, errors, started = _LogEnd(numbered(START, number).encode()), _LogEnd(), time.monotonic()
    async with await sandbox.start_program(ProgramSpec(["bash", path])) as program:
        if before_tests is None:
            program.end_input()
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                group.create_task(_read(program, STDOUT, output))
                group.create_task(_read(program, STDERR, errors))
                if before_tests is not None:
                    group.create_task(_go_on(program, output, before_tests))
        except TimeoutError:
            pass
    log = output.kept()
    if START in script:
        log = between(log, number)
    too_long = max(output.total, errors.total) > MAX_PRINTED_BYTES
    return RunLog(log, errors.kept(), time.monotonic() - started >= seconds, too_long)


async def _read(program: Program, channel: int, into: _LogEnd) -> None:
    while (chunk := await program.read(channel)) and into.total <= MAX_PRINTED_BYTES:
        into.add(chunk)
    into.marked_or_ended.set()


async def _go_on(program: Program, output: _LogEnd, before_tests: Callable[[], Awaitable[None]]) -> None:
    """Let the script go on behind its mark."""
    await output.marked_or_ended.wait()
    if output.marked:
        await before_tests()
    program.end_input()
