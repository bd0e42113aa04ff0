"""Whether two answers are the same mathematics, asked of math-verify in a process of its own.

What a model writes can keep a computer algebra system busy for ever (9**9**9), so the question has a hard limit, and the
process that does not answer is killed. A process that died by itself may have been killed from outside, so it is asked
once more before that is held against the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from rollyard.errors import NodeFault, TaskError

LIMIT_SECONDS = 20.0
START_SECONDS = 120.0
"""The algebra system takes seconds to import on a busy machine."""
MAX_ANSWER_CHARS = 2000
MEMORY_BYTES = 4 << 30


class _Died(Exception):
    pass


class AnswerChecker:
    """One worker process, started at the first question, asked one at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock: asyncio.Lock | None = None

    async def equal(self, reference: str, answer: str) -> bool:
        """False for an answer that cannot be read, or not in time.

        Raises TaskError when the reference cannot be read, NodeFault when the process does not start.
        """
        if len(answer) > MAX_ANSWER_CHARS:
            return False
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not await self._verdict(reference, reference):
                raise TaskError(f"the reference answer {reference!r} cannot be read as mathematics")
            return await self._verdict(reference, answer)

    async def _verdict(self, reference: str, answer: str) -> bool:
        for _ in range(2):
            with contextlib.suppress(_Died):
                return await self._ask(reference, answer)
        return False

    async def _ask(self, reference: str, answer: str) -> bool:
        """Raises _Died when the process ended instead of answering."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([reference, answer]).encode() + b"\n")
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            self._end()
            return False
        except asyncio.CancelledError:
            self._end()  # its late answer would be taken for the next question's
            raise
        if not line:
            self._end()
            raise _Died
        return bool(json.loads(line))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rollyard.agents.answers", stdin=pipe, stdout=pipe
            )
            try:
                await self._greet(self._process)
            except BaseException:
                self._end()  # its late greeting would be taken for an answer
                raise
        return self._process

    @staticmethod
    async def _greet(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.stdout.readline()
        except TimeoutError:
            raise NodeFault(f"the process that compares answers did not start within {START_SECONDS:g} s") from None
        if not ready:
            raise NodeFault("the process that compares answers ended at its start; is math-verify installed here?")

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None


def _work() -> None:
    """The worker: a pair a line in, a verdict a line out; it ends with its standard input."""
    import logging
    import resource

    from math_verify import parse, verify

    logging.disable(logging.WARNING)  # it quotes what it could not read, at any length
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("ready", flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        reference, answer = json.loads(line)
        try:
            # math-verify's own limits use alarm signals: this is a main thread, so they work.
            verdict = verify(parse(f"\\boxed{{{reference}}}"), parse(f"\\boxed{{{answer}}}"))
        except (ValueError, TypeError, ArithmeticError, MemoryError, RuntimeError, LookupError, AttributeError):
            verdict = False
        print(json.dumps(bool(verdict)), flush=True)  # noqa: T201 - the protocol


if __name__ == "__main__":
    _work()
