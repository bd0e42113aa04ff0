"""Runs the child process that uses pyslurm. The child handles one request at a time, and is killed after each failure.

pyslurm needs a process of its own for two reasons. pyslurm holds Python's interpreter lock while it waits for Slurm. And
Slurm's library may end its process at any call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollyard.core.errors import SlurmUnreachable

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 5.0
"""Shortest and longest time between the starts of two children after a failure. The time doubles with each failure in a
row."""
MAX_ANSWER_BYTES = 256 << 20
KILLED_SECONDS = 5.0
"""Greatest wait for the end of a killed child."""
LAST_LINES = 5
_SOURCE = Path(__file__).with_name("pyslurm_child.py")


class _ChildFailed(Exception):
    """Raised if the child cannot be started, has ended, or prints something that is not an answer."""


class PyslurmProcess:
    """Starts the child on demand and sends requests to it. There is at most one child at a time."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, limit_seconds: float) -> None:
        """`command`: a Python (3.9 or later) that can import pyslurm.

        This Python may be unable to read Rollyard's files, so the child's code is passed as an argument.
        """
        self._command = (*command, "-c", _SOURCE.read_text())
        self._env, self._limit = env, limit_seconds
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._child: _Child | None = None
        self._started_at = 0.0
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The child's pid; None if there is no child."""
        return self._child.process.pid if self._child is not None else None

    async def ask(self, call: str, **arguments: object) -> Any:
        """Send a request and return its answer.

        The time limit applies to the wait for earlier requests, and again to this request.

        Raises SlurmUnreachable with the reason: an error that the child reported, a time-out, or a failed child.
        """
        try:
            async with asyncio.timeout(self._limit):
                await self._lock.acquire()
        except TimeoutError:
            raise SlurmUnreachable(f"pyslurm was busy with other calls for {self._limit:g} s") from None
        try:
            return await self._in_time({"id": next(self._numbers), "call": call, **arguments})
        finally:
            self._lock.release()

    async def close(self) -> None:
        await self._end()  # a running call fails and releases the lock
        async with self._lock:
            await self._end()

    async def _in_time(self, request: dict[str, object]) -> Any:
        try:
            async with asyncio.timeout(self._limit):
                answer = await self._exchange(request)
        except TimeoutError:
            complaint = self._child.complaint if self._child is not None else ""
            why = f"it did not answer within {self._limit:g} s{complaint}"
        except _ChildFailed as error:
            why = str(error)
        else:
            if "answer" in answer:
                self._failures = 0
                return answer["answer"]
            why = str(answer.get("error"))
        # The child is also ended after an error that it reported. The library reads slurm.conf only once, so an outdated
        # slurm.conf may have caused the error.
        self._failures += 1
        await self._end()
        raise SlurmUnreachable(f"pyslurm: {why}")

    async def _exchange(self, request: Mapping[str, object]) -> dict[str, Any]:
        child = self._child
        if child is None or child.process.returncode is not None:
            child = await self._start()
        await child.write(request)
        while True:
            answer = await child.read()
            # An error with id 0 means that the child could not load pyslurm. Two kinds of answers are skipped:
            # pyslurm's version, which has id 0, and answers to cancelled calls.
            if answer["id"] == request["id"] or (answer["id"] == 0 and "error" in answer):
                return answer

    async def _start(self) -> _Child:
        await self._end()
        if self._failures:
            pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10))
            await asyncio.sleep(self._started_at + pause - time.monotonic())
        self._started_at = time.monotonic()
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._env,
                cwd="/",  # with `-c` Python looks for imports in this folder first
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=MAX_ANSWER_BYTES,
                start_new_session=True,  # ^C must not end the child; `killpg` also ends a wrapper around the child
            )
        except OSError as error:
            raise _ChildFailed(f"{self._command[0]} cannot be run: {error.strerror}") from None
        self._child = _Child(process)
        return self._child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()


class _Child:
    """A started child, with a task that reads the child's stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader = asyncio.create_task(self._listen())

    @property
    def complaint(self) -> str:
        return f": {'; '.join(self._last_lines)}" if self._last_lines else ""

    async def write(self, request: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):  # the child has ended; the next `read` reports why
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            await self.process.stdin.drain()

    async def read(self) -> dict[str, Any]:
        """Read the next line: an id with an answer or an error. Raises _ChildFailed."""
        assert self.process.stdout is not None
        try:
            line = await self.process.stdout.readline()
            if not line:
                raise _ChildFailed(await self._end_text())
            answer = json.loads(line)
            if not isinstance(answer, dict) or not isinstance(answer.get("id"), int):
                raise ValueError
        except (ValueError, RecursionError):  # the line is too long, not UTF-8, not JSON, or not an answer
            raise _ChildFailed("it printed an invalid answer") from None
        return answer

    async def end(self) -> None:
        """Kill the child. KILL works even if the child is stopped or blocked in the library."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS):
                await self.process.wait()
        self._reader.cancel()

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        while piece := await self.process.stderr.read(1 << 16):
            self._last_lines.extend(
                filter(None, (line.strip() for line in piece.decode(errors="replace").splitlines()))
            )

    async def _end_text(self) -> str:
        status = await self.process.wait()
        await asyncio.wait([self._reader], timeout=1.0)
        return f"its process ended with status {status}{self.complaint}"
