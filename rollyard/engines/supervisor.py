"""Keeps one engine process alive behind a Unix socket, and always knows why it is not ready."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections import deque
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import aiohttp

from rollyard.client.link import Backoff
from rollyard.engines.command import EngineCommand
from rollyard.engines.load import read_load
from rollyard.engines.process import EngineFailed, end_engine, how_it_ended, start_engine
from rollyard.kinds.wire import EngineLoad

log = logging.getLogger(__name__)

STARTUP_SECONDS = 1800.0
"""A large model takes minutes to load."""
LOADING_PROBE_SECONDS, PROBE_SECONDS, PROBE_TIMEOUT_SECONDS = 0.1, 1.0, 5.0
FAILED_PROBES = 5
RELAY_SECONDS = 2.0
"""For the last words of an engine that has ended."""
RELAY_BYTES = 64 << 10
"""At a time, and the longest line that is kept in one piece."""
QUICK_DEATHS = 3
"""Deaths before it was ever ready, in a row, after which no restart will help."""


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1, None when it does not say so; so too `waiting`."""
    load: EngineLoad | None = None


class Supervisor:
    """Starts the engine, asks it how it is, restarts it with back-off, ends it."""

    def __init__(
        self, command: EngineCommand, uds: Path, *, startup_seconds: float = STARTUP_SECONDS, lives: float = math.inf
    ) -> None:
        """`lives`: how often it may be started in all; the other ranks of a gang do not come back with it."""
        self._command = command
        self._lives = lives
        self._uds = uds
        self._startup = startup_seconds
        self._tail: deque[str] = deque(maxlen=20)
        self._ever_ready = False
        self._life = 0
        self.health = Health(False, "Starting")

    def session(self) -> aiohttp.ClientSession:
        """A session whose every request goes to the engine; bodies come as they are, compressed or not."""
        connector = aiohttp.UnixConnector(path=str(self._uds), limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def run(self) -> None:
        """For ever. Raises EngineFailed when the engine has no life left, or dies again and again before it was ready."""
        backoff, quick, deaths = Backoff(0.5, 30.0), 0, 0
        async with self.session() as http:
            while True:
                why = await self._one_life(http)
                quick, deaths = 0 if self._ever_ready else quick + 1, deaths + 1
                if self._ever_ready:
                    backoff.reset()
                self.health = Health(False, f"EngineDied: {why}")
                log.error("engine ended (%d times before it was ready): %s", quick, why)
                if quick >= QUICK_DEATHS or deaths >= self._lives:
                    raise EngineFailed(f"EngineFailed: {why}")
                await backoff.wait()

    async def _one_life(self, http: aiohttp.ClientSession) -> str:
        """From start to death; answers what it died of. Raises EngineFailed when it cannot even be started."""
        self.health, self._ever_ready = Health(False, "Loading"), False
        self._life += 1
        self._tail.clear()
        self._uds.unlink(missing_ok=True)
        # A pipe of our own: with asyncio's, the wait for a death lasts as long as a worker left behind holds it open.
        output, input = os.pipe()
        with FileIO(output) as words:
            try:
                process = await start_engine(self._command, stdout=input, stderr=input)
            finally:
                os.close(input)
            return await self._watch(http, process, words)

    async def _watch(self, http: aiohttp.ClientSession, process: asyncio.subprocess.Process, words: FileIO) -> str:
        relay = asyncio.create_task(self._relay(words))
        probe = asyncio.create_task(self._probe(http))
        death = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({probe, death}, return_when=asyncio.FIRST_COMPLETED)
            by_itself = death.done()
        finally:
            self.health = Health(False, "EngineDied")
            await end_engine(process)
            await asyncio.wait({relay}, timeout=RELAY_SECONDS)
            for task in (relay, probe, death):
                task.cancel()
            await asyncio.gather(relay, probe, death, return_exceptions=True)
        return self._why(process.returncode if by_itself else None)

    def _why(self, code: int | None) -> str:
        """In its own words where there are any; `code` is None when it was ended by us."""
        errors = [line for line in self._tail if line.startswith("error: ")]
        words = (errors or list(self._tail) or ["it said nothing"])[-1].removeprefix("error: ")
        if code is None:
            return words
        return f"{how_it_ended(code)}: {words}"

    async def _relay(self, words: FileIO) -> None:
        """The engine's words go to the job's log; the last ones are kept to explain a death."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), words
        )
        try:
            rest = b""
            while data := await reader.read(RELAY_BYTES):
                lines, end, rest = (rest + data).rpartition(b"\n")
                if len(rest) > RELAY_BYTES:  # too long to wait for its end
                    end, rest = end + rest, b""
                await self._pass_on(lines + end)
            await self._pass_on(rest)
        finally:
            transport.close()

    async def _pass_on(self, lines: bytes) -> None:
        texts = (line.strip() for line in lines.decode(errors="replace").split("\n"))
        self._tail.extend(text for text in texts if text)
        # In a thread: the log lies on shared storage, which may stall, and this loop carries token streams.
        await asyncio.to_thread(_print, lines)

    async def _probe(self, http: aiohttp.ClientSession) -> None:
        """Until it hangs."""
        failed, loop = 0, asyncio.get_running_loop()
        deadline = loop.time() + self._startup
        while True:
            health = await self._ask(http)
            if health.ready:
                self._ever_ready, failed = True, 0
                self.health = health
            elif self._ever_ready:
                failed += 1
                self.health = health
                if failed >= FAILED_PROBES:
                    self._tail.append("error: it does not answer /health any more")
                    return
            elif loop.time() > deadline:
                self._tail.append(f"error: it was not ready after {self._startup:g} s")
                return
            await asyncio.sleep(PROBE_SECONDS if self._ever_ready else LOADING_PROBE_SECONDS)

    async def _ask(self, http: aiohttp.ClientSession) -> Health:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                async with http.get("http://engine/health") as answer:
                    if answer.status != 200:
                        return Health(False, f"Unhealthy: /health answers {answer.status}")
                async with http.get("http://engine/metrics", headers={"Accept-Encoding": "identity"}) as answer:
                    return self._healthy(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Health(False, f"Unhealthy: {type(error).__name__}")

    def _healthy(self, metrics: str) -> Health:
        load = read_load(metrics, life=self._life, at=asyncio.get_running_loop().time())
        return Health(True, "", load.running or 0, load.waiting, load.kv_usage, load.totals)


def _print(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
