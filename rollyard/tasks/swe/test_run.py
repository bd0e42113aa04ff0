"""One run of a task's test script, and the log of it.

The log goes through a pipe to the host while the script runs. So the code under test can print into the log, as the tests can,
and can take nothing back: no file in the sandbox holds the log, and what is printed after the end of the script is not read.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import time
from collections import deque
from dataclasses import dataclass

from rollyard.core.errors import TaskError
from rollyard.sandbox.program import STDERR, STDOUT, Program, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe.log_parsers.log_lines import lines

MAX_LOG_BYTES = 16 << 20
"""Length of the log that is kept: its end."""
MAX_PRINTED_BYTES = 256 << 20
"""A script that prints more is ended."""
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""Lines that a script may print around the output of the tests. They get a number that the code under test does not know."""

_SILENT_MARK = re.compile(r"^ *: *('>>>>> (?:Start|End) Test Output') *$", re.MULTILINE)
"""A mark that only a shell with `set -x` prints."""


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

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._kept += len(chunk)
        self.total += len(chunk)
        while self._kept - len(self._chunks[0]) >= MAX_LOG_BYTES:
            self._kept -= len(self._chunks.popleft())

    def kept(self) -> bytes:
        return b"".join(self._chunks)[-MAX_LOG_BYTES:]


async def run_script(sandbox: Sandbox, repository: str, script: str, seconds: float, *, apart: bool = False) -> RunLog:
    """Run the script in the repository, in a new bash with the image's environment. `apart`: keep standard error apart. Raises
    TaskError if the script cannot be written or started."""
    number = secrets.token_hex(16)
    path = f"/tmp/{number}.sh"
    head = f"cd {shlex.quote(repository)} || exit 125\nrm -f {path}\n" + ("" if apart else "exec 2>&1\n")
    marked = _SILENT_MARK.sub(r"echo \1", script).replace(START, f"{START} {number}").replace(END, f"{END} {number}")
    try:
        await sandbox.write_file(path, (head + marked).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise TaskError(f"the test script cannot be written in a fresh sandbox: {error}") from error
    output, errors, started = _LogEnd(), _LogEnd(), time.monotonic()
    async with await sandbox.start_program(ProgramSpec(["bash", path])) as program:
        program.end_input()
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                group.create_task(_read(program, STDOUT, output))
                group.create_task(_read(program, STDERR, errors))
        except TimeoutError:
            pass
    log = output.kept()
    if START in script:
        log = _between(log, f"{START} {number}".encode(), f"{END} {number}".encode())
    too_long = max(output.total, errors.total) > MAX_PRINTED_BYTES
    return RunLog(log, errors.kept(), time.monotonic() - started >= seconds, too_long)


async def _read(program: Program, channel: int, into: _LogEnd) -> None:
    while (chunk := await program.read(channel)) and into.total <= MAX_PRINTED_BYTES:
        into.add(chunk)


def _between(log: bytes, start: bytes, end: bytes) -> bytes:
    """Return the lines between the marks; nothing if the script did not come to the first one."""
    _, _, after = log.partition(start)
    before, found, _ = after.rpartition(end)
    return before.partition(b"\n")[2].rpartition(b"\n")[0] if found else after.partition(b"\n")[2]
