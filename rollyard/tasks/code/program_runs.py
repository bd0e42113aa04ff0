"""Runs of programs in a sandbox, through the program runner of the sandbox agent."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollyard.core.aio import running
from rollyard.core.errors import NodeFault, SandboxStartFailed
from rollyard.sandbox.program import STDOUT, Program, ProgramRefused, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox_agent.program_runner import HEAD
from rollyard.sandbox_agent.programs import RUNNER

WALL_FACTOR, WALL_EXTRA = 3.0, 5.0
"""A program may take so much longer than its CPU time, because the node may be busy."""
MARGIN_SECONDS = 30.0
"""Seconds for the end of a program's processes and the removal of its files."""
_CHUNK = 1 << 16
_MOST_FRAME = 1 << 20
_LAST_LINE_CHARS = 300
_NAMES_CAUSE = re.compile(
    r"(?:Exception in thread|Caused by:|panic:|fatal error:|[\w.]*(Error|Exception)\b(?!.*\bat ))"
)
Output = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class RunLimits:
    cpu_seconds: float
    wall_seconds: float
    """Without the time in which the program was ready to run and had no core."""
    latest_seconds: float
    """All of the time that there is."""
    memory_bytes: int = 0
    """0: the sandbox's limit alone."""
    output_bytes: int = 16 << 20


@dataclass(frozen=True)
class ProgramStart:
    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    limits: RunLimits
    confined: bool = True
    """False for a compiler, whose files stay."""


@dataclass(frozen=True)
class ProgramRun:
    """Output and end of a program. `str()` is the reason why it did not end well, for people."""

    limits: RunLimits
    output: bytes = b""
    exit_code: int | None = None
    """Negative: the number of the signal that ended it. None: the program ended its runner."""
    limit: str | None = None
    cpu: float = 0.0
    """Seconds."""
    wall: float = 0.0
    memory: int = 0
    """Greatest number of bytes that one process, or all together, had."""
    errors: str = ""
    refused: tuple[int, str] | None = None
    """Error number and text of what kept it from starting."""

    @property
    def ended_well(self) -> bool:
        return self.exit_code == 0 and self.limit is None and self.refused is None

    def __str__(self) -> str:
        if self.refused is not None:
            return f"it could not start: {self.refused[1]}"
        if self.limit == "cpu":
            return f"it took more than {self.limits.cpu_seconds:g} s of CPU time"
        if self.limit == "wall":
            return f"it had not ended after {self.wall:.3g} s"
        if self.limit == "memory":
            return f"it used more than {self.limits.memory_bytes >> 20} MiB of memory"
        if self.limit == "output":
            return f"it printed more than {self.limits.output_bytes} bytes"
        if self.exit_code is None:
            return "it ended or stopped the program that runs the cases"
        if self.exit_code == -signal.SIGKILL:
            return "it was ended by SIGKILL; perhaps it used more memory than the sandbox has"
        ended = f"with exit code {self.exit_code}" if self.exit_code >= 0 else f"by {_signal_name(-self.exit_code)}"
        why = f"it ended {ended}"
        cause = _cause(self.errors)[:_LAST_LINE_CHARS]
        return f"{why}{': ' + cause if cause else ''}"


class ProgramRunner:
    """The runner of one sandbox. It runs one program at a time."""

    def __init__(self, sandbox: Sandbox, program: Program) -> None:
        self._sandbox = sandbox
        self._program = program
        self._read = bytearray()
        self._alive = True

    async def run(self, start: ProgramStart, data: bytes = b"") -> ProgramRun:
        """Run a program with `data` as its standard input."""
        output = bytearray()

        async def keep(chunk: bytes) -> None:
            output.extend(chunk)

        async def feed() -> None:
            for begin in range(0, len(data), _CHUNK):
                await self.write(data[begin : begin + _CHUNK])
            await self.end_input()

        await self.begin(start)
        return replace(await self.until_end(start, keep, feed()), output=bytes(output))

    async def begin(self, start: ProgramStart, *, talks: bool = False) -> None:
        """Start a program. Each call needs one of `until_end`. `talks`: its input may depend on what it prints."""
        job = {
            "argv": list(start.argv), "env": dict(start.environment), "cwd": start.cwd, "confined": start.confined,
            "whole_input": not talks, **asdict(start.limits),
        }  # fmt: skip
        await self._send(b"R", json.dumps(job).encode())

    async def until_end(
        self, start: ProgramStart, output: Output, feed: Coroutine[Any, Any, None] | None = None
    ) -> ProgramRun:
        """Wait until the program has ended. `output` gets what it prints, and `feed` writes its input and ends it."""
        end, work = None, feed or _nothing()
        if not self._alive:
            work.close()
            return ProgramRun(start.limits)
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(start.limits.latest_seconds + MARGIN_SECONDS),
                running(work) as feeding,
            ):
                end = await self._end(output)
                await feeding  # a half frame would spoil the next run
        if end is not None:
            return ProgramRun(start.limits, **{**end, "refused": tuple(end["refused"]) if end["refused"] else None})
        self._alive = False
        if await self._sandbox.was_hurt():
            raise NodeFault(f"the program that runs the cases ended: {self._sandbox.node_fault}")
        return ProgramRun(start.limits)

    async def write(self, chunk: bytes) -> None:
        await self._send(b"I", chunk)

    async def end_input(self) -> None:
        await self._send(b"E", b"")

    async def _send(self, kind: bytes, content: bytes) -> None:
        await self._program.write(HEAD.pack(kind, len(content)) + content)

    async def _end(self, output: Output) -> Any:
        """Return how the program ended; None if the runner is gone."""
        while True:
            while len(self._read) >= HEAD.size:
                kind, length = HEAD.unpack_from(self._read)
                if length > _MOST_FRAME:
                    return None
                if len(self._read) < HEAD.size + length:
                    break
                content = bytes(self._read[HEAD.size : HEAD.size + length])
                del self._read[: HEAD.size + length]
                if kind == b"D":
                    return json.loads(content)
                await output(content)
            chunk = await self._program.read(STDOUT)
            if not chunk:
                return None
            self._read += chunk


@asynccontextmanager
async def program_runner(sandbox: Sandbox) -> AsyncIterator[ProgramRunner]:
    """Start the runner. It ends every process of the sandbox's tools. Raises SandboxStartFailed."""
    await sandbox.prepare(["bash"])  # a bash that ends before its first prompt counts as broken
    try:
        program = await sandbox.start_program(ProgramSpec([], own=RUNNER))
    except ProgramRefused as error:
        raise SandboxStartFailed(f"the program that runs the cases did not start: {error}") from None
    async with program:
        yield ProgramRunner(sandbox, program)


def limits_of(cpu_seconds: float, left: float, memory_bytes: int = 0, output_bytes: int = 16 << 20) -> RunLimits:
    """Return the limits of one program. `left`: seconds until all must have ended."""
    wall = min(WALL_FACTOR * cpu_seconds + WALL_EXTRA, left)
    return RunLimits(cpu_seconds, max(wall, 0.0), max(left, 0.0), memory_bytes, output_bytes)


async def _nothing() -> None:
    pass


def _cause(errors: str) -> str:
    """Return the line that names the error: the last one, unless a stack trace of Java, Go or Node follows it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_CAUSE.match(line)]
    return named[-1] if named else next(iter(lines[-1:]), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
