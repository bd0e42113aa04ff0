"""A pool of child processes. The children judge text written by agents, in parallel.

Such text can keep any parser or algebra system busy for ever, or fill the memory. So the node agent passes the text on
without parsing it. A child forks itself for each question, and the fork parses the text under limits of CPU time and
memory that the kernel enforces. Time is limited as CPU time and not as wall time, so that the check of a right answer
does not run out of time on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any

from rollyard.core.errors import NodeFault
from rollyard.tasks.scoring.checker_process import PREPARES

START_SECONDS = 120.0
"""Limit for a child's start, and for an import that a question needs: an algebra system takes seconds on a busy machine."""
GROW_SECONDS = 1.0
"""A question that has waited so long for a child gets a new one. Most questions take milliseconds, and a start a second of
CPU time."""


class CheckerKilled(Exception):
    """A question (see `CheckerPool.ask`) used up the CPU limit, or could not be judged in two tries. The exception's
    text is the name of a metric."""


class _CheckerEnded(Exception):
    pass


class CheckerPool:
    """Children that run one module. One starts with the first question, and one more while all others stay busy: by default at
    most two for each core."""

    def __init__(self, module: str, harmless: Sequence[bytes], most: int | None = None) -> None:
        """`module`: name of the program's module; the program calls `checker_process.serve`. `harmless`: a question
        that any working child can answer, and that needs all that a child imports."""
        self._module = module
        self._warm_up_question = harmless
        self._slots = asyncio.Semaphore(most or 2 * len(os.sched_getaffinity(0)))
        self._idle: asyncio.LifoQueue[asyncio.subprocess.Process] = asyncio.LifoQueue()
        self._children = 0
        """Number of children that start, are busy, or are idle."""
        self._starting = 0
        """Number of children that start, or import what a question needs."""

    async def ask(self, *parts: bytes) -> dict[str, Any]:
        """Send one question, which consists of `parts`, to a child. Return the child's answer.

        The child judges the question in a fork. The question is asked a second time if the child ends, or if the fork
        dies for another reason than the CPU limit, because either may have been killed from outside. A cancelled call
        kills its child.

        Raises CheckerKilled if a fork uses up the CPU limit, or if both tries fail. Raises NodeFault if a child does
        not start, or if, after two failed tries, the harmless question fails too.
        """
        async with self._slots:
            for _ in range(2):
                verdict = await self._answer(parts)
                if "died" not in verdict:
                    return verdict
                if verdict["died"] == signal.SIGXCPU:
                    raise CheckerKilled("timed_out")
            if "died" in await self._answer(self._warm_up_question):
                raise NodeFault(f"the processes that check answers ({self._module}) die on this node at every request")
        raise CheckerKilled("checker_killed")

    async def _answer(self, parts: Sequence[bytes]) -> dict[str, Any]:
        child = await self._acquire()
        try:
            reply = await _exchange(child, parts)
            verdict: dict[str, Any] = await self._prepared(child) if reply == PREPARES else reply
        except _CheckerEnded:
            self._children -= 1
            await _end(child)
            return {"died": None}
        except BaseException:
            self._children -= 1
            _kill(child)
            raise
        self._idle.put_nowait(child)
        return verdict

    async def close(self) -> None:
        """End the idle children. asyncio warns about children that still run when the loop closes."""
        while not self._idle.empty():
            self._children -= 1
            await _end(self._idle.get_nowait())

    async def _acquire(self) -> asyncio.subprocess.Process:
        """Return an idle child, or a new one if there is none, or if none has become idle for a while."""
        while self._children:
            try:
                async with asyncio.timeout(GROW_SECONDS):
                    child = await self._idle.get()
            except TimeoutError:
                if self._starting:
                    continue
                break
            if child.returncode is None:
                return child
            self._children -= 1
        self._children += 1
        self._starting += 1
        try:
            return await self._start()
        except BaseException:
            self._children -= 1
            raise
        finally:
            self._starting -= 1

    async def _prepared(self, child: asyncio.subprocess.Process) -> Any:
        """Return the verdict of a child that first imports what the question needs."""
        self._starting += 1
        try:
            async with asyncio.timeout(START_SECONDS):
                return await _line(child)
        except TimeoutError:
            raise self._not_ready() from None
        finally:
            self._starting -= 1

    def _not_ready(self) -> NodeFault:
        return NodeFault(f"the process that checks answers ({self._module}) did not start; see this node agent's log")

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._module, stdin=pipe, stdout=pipe, start_new_session=True
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await _line(child)
        except (TimeoutError, _CheckerEnded):
            await _end(child)
            raise self._not_ready() from None
        except BaseException:
            _kill(child)
            raise
        assert ready == "ready", ready
        return child


async def _exchange(child: asyncio.subprocess.Process, parts: Sequence[bytes]) -> Any:
    assert child.stdin is not None
    with contextlib.suppress(ConnectionError):  # the child has ended, so `_line` finds the end of its output
        child.stdin.write(struct.pack(f"!{1 + len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts))
        await child.stdin.drain()
    return await _line(child)


async def _line(child: asyncio.subprocess.Process) -> Any:
    """Return the next message of a child. Raises _CheckerEnded at the end of the child's output."""
    assert child.stdout is not None
    line = await child.stdout.readline()
    if not line.endswith(b"\n"):
        raise _CheckerEnded
    return json.loads(line)


async def _end(child: asyncio.subprocess.Process) -> None:
    _kill(child)
    await child.wait()


def _kill(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
    # Close the child's pipes too. Pipes that are closed by the garbage collector after the end of the loop cause a
    # warning.
    child._transport.close()  # type: ignore[attr-defined]
