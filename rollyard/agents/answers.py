"""Whether two answers are the same mathematics, asked of math-verify in a process of its own.

What a model writes can keep a computer algebra system busy for ever (9**9**9), so the question has a hard limit, and the
process that does not answer is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from rollyard.errors import TaskError

LIMIT_SECONDS = 20.0
START_SECONDS = 120.0
"""The algebra system takes seconds to import on a busy machine."""
MAX_ANSWER_CHARS = 2000
MEMORY_BYTES = 4 << 30


class AnswerChecker:
    """One worker process, started at the first question, asked one at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock: asyncio.Lock | None = None

    async def equal(self, reference: str, answer: str) -> bool:
        """False for an answer that cannot be read, or not in time. Raises TaskError when the reference cannot be read."""
        if len(answer) > MAX_ANSWER_CHARS:
            return False
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not await self._ask(reference, reference):
                raise TaskError(f"the reference answer {reference!r} cannot be read as mathematics")
            return bool(await self._ask(reference, answer))

    async def _ask(self, reference: str, answer: str) -> bool | None:
        """The verdict; None when the worker died of the question or took too long."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([reference, answer]).encode() + b"\n")
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        except asyncio.CancelledError:
            self._end()  # its late answer would be taken for the next question's
            raise
        if not line:
            self._end()
            return None
        return bool(json.loads(line))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rollyard.agents.answers", stdin=pipe, stdout=pipe
            )
            assert self._process.stdout is not None
            await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None


def _work() -> None:
    """The worker: a pair a line in, a verdict a line out; it ends with its standard input."""
    import resource

    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("ready", flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        reference, answer = json.loads(line)
        try:
            # math-verify's own limits use alarm signals: this is a main thread, so they work.
            verdict = verify(parse(f"\\boxed{{{reference}}}"), parse(f"\\boxed{{{answer}}}"))
        except (ValueError, TypeError, ArithmeticError, MemoryError, RecursionError, AttributeError):
            verdict = False
        print(json.dumps(bool(verdict)), flush=True)  # noqa: T201 - the protocol


if __name__ == "__main__":
    _work()
