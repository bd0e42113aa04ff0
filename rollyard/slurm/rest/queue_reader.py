"""Parser of slurmrestd's answers about jobs.

A child process parses large answers, because parsing holds Python's interpreter lock and would block the server. The
child is started on demand, and again after a failure. It ends when its stdin ends, so it also ends after a crash of the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.rest.codec import Codec, QueueAnswer, parse_json

SMALL_BYTES = 256 << 10
"""Greatest size of an answer that the server parses itself. To parse this many bytes takes some milliseconds, about as
long as a call to the child."""
PIECE_BYTES = 1 << 20
LENGTH_BYTES = 8
"""Each message begins with its length, as a big-endian number of this many bytes."""
FAULTS = (KeyError, TypeError, ValueError, AttributeError)
"""Errors that a malformed body raises."""
COMMAND = (sys.executable, "-m", "rollyard.slurm.rest.queue_reader_child")


class QueueReader:
    """Parses answers about the queue. There is at most one child process at a time."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._turn = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None

    async def queue(self, codec: Codec, raw: bytes, user: str) -> QueueAnswer:
        """Parse an answer about the queue. Raises one of FAULTS if it is malformed, and SlurmUnreachable if the child
        failed or took too long."""
        if len(raw) <= SMALL_BYTES:
            return codec.queue(parse_json(raw), user)
        async with self._turn:
            try:
                async with asyncio.timeout(self._limit):
                    found = await self._exchange(pickle.dumps((codec, user)), raw)
            except TimeoutError:
                await self.close()
                raise SlurmUnreachable(f"{len(raw)} bytes of jobs were not read within {self._limit:g} s") from None
            except (OSError, EOFError) as error:
                await self.close()
                raise SlurmUnreachable(
                    f"the process that reads slurmrestd's jobs has ended: {type(error).__name__}"
                ) from None
            except asyncio.CancelledError:
                await self.close()  # the next call must not read the answer to this call
                raise
        if isinstance(found, Exception):
            raise found
        return found

    async def close(self) -> None:
        """Kill the child. A call that waits for the child's answer fails."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            assert child.stdin is not None
            with contextlib.suppress(OSError):
                await child.stdin.wait_closed()  # without this wait asyncio logs an error if bytes are unsent

    async def _exchange(self, *messages: bytes) -> QueueAnswer | Exception:
        """Send the messages and return the child's result."""
        child = self._child
        if child is None or child.returncode is not None:
            child = self._child = await self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        for message in messages:
            child.stdin.write(len(message).to_bytes(LENGTH_BYTES, "big"))
            for start in range(0, len(message), PIECE_BYTES):  # in pieces: a copy of the whole would block the loop
                child.stdin.write(memoryview(message)[start : start + PIECE_BYTES])
                await child.stdin.drain()
        length = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        found: QueueAnswer | Exception = pickle.loads(await child.stdout.readexactly(length))
        return found

    @staticmethod
    async def _start() -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # The child has its own process group, so that ^C ends only the server.
        return await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, process_group=0)
