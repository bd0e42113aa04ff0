"""Keeps one engine process alive behind a Unix socket, and always knows why it is not ready."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import aiohttp

from rollyard.client.server_link import Backoff
from rollyard.core.aio import Signal, running, wait_or_timeout
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, end_engine, how_it_ended, start_engine
from rollyard.engine.process.crash_reason import last_words, out_of_memory, reason_given
from rollyard.engine.process.metrics_scrape import read_load
from rollyard.wire.engine import EngineLoad

log = logging.getLogger(__name__)

Prepare = Callable[[], Awaitable[EngineCommand]]
"""Says what to start, before each start: what is there may have changed. Raises EngineFailed."""

LOADING_PROBE_SECONDS, PROBE_SECONDS, PROBE_TIMEOUT_SECONDS = 0.1, 1.0, 5.0
FAILED_PROBES = 5
RELAY_SECONDS = 2.0
"""For the last words of an engine that has ended."""
RECENT_SECONDS = 10.0
"""Lines of an engine older than this at its death do not explain it: vLLM's processes need some seconds to go down."""
RELAY_BYTES = 64 << 10
"""At a time, and the longest line that is kept in one piece."""
TAIL_LINES = 500
"""Of its words are kept: the tracebacks of vLLM's processes, one after the other."""
QUICK_DEATHS = 3
"""Deaths before it was ever ready, in a row, after which no restart will help."""
STEADY_SECONDS = 120.0
"""What dies sooner than this after it was ready has not recovered from the last death."""
CRASHES = 5
"""Deaths in a row, none of them after it was steady, after which it should be tried on another node."""


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1, None when it does not say so; so too `waiting`."""
    load: EngineLoad | None = None


@dataclass(frozen=True, slots=True)
class Death:
    reason: str
    words: str
    final: bool = False
    """Trying again here would only take as long again."""


@dataclass(slots=True)
class Deaths:
    total: int = 0
    unready: int = 0
    """In a row, each before it was ready."""
    in_a_row: int = 0
    """Each before it was steady."""

    def add(self, lived: float | None) -> None:
        """`lived`: seconds from ready to death, None where it never was."""
        self.total += 1
        self.unready = self.unready + 1 if lived is None else 0
        self.in_a_row = 1 if lived is not None and lived >= STEADY_SECONDS else self.in_a_row + 1


class Supervisor:
    """Starts the engine, asks it how it is, restarts it with back-off, ends it."""

    def __init__(
        self, prepare: Prepare, uds: Path, *, startup_seconds: float = 1800.0, lives: float = math.inf
    ) -> None:
        """`lives`: how often it may be started in all; the other ranks of a gang do not come back with it."""
        self.prepare = prepare
        """Of the next life."""
        self.life = 0
        """How often it has been started."""
        self.life_begun = Signal[[]]()
        """A life of the engine began; its process starts next."""
        self.refused = ""
        """What `restart` led to, once that was given up for the other one."""
        self._or_else: Prepare | None = None
        self._again = asyncio.Event()
        self._lives = lives
        self._uds = uds
        self._startup = startup_seconds
        self._tail: deque[tuple[float, str]] = deque(maxlen=TAIL_LINES)
        """(loop time, line)."""
        self._ready_at: float | None = None
        """Loop time at which this life was first ready."""
        self.health = Health(False, "Starting")

    def session(self) -> aiohttp.ClientSession:
        """A session whose every request goes to the engine; bodies come as they are, compressed or not."""
        connector = aiohttp.UnixConnector(path=str(self._uds), limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def run(self) -> None:
        """For ever. Raises EngineFailed when the engine has no life left, or dies again and again."""
        backoff, deaths, loop = Backoff(0.5, 30.0), Deaths(), asyncio.get_running_loop()
        again = ""
        async with self.session() as http:
            while True:
                if self._again.is_set():  # also where it was asked for between two lives
                    self._again.clear()
                    backoff, deaths, again = Backoff(0.5, 30.0), Deaths(deaths.total), ""
                death = await self._one_life(http, again)
                if self._again.is_set() or self._fell_back(death.words):
                    continue
                deaths.add(None if self._ready_at is None else loop.time() - self._ready_at)
                if deaths.in_a_row == 1:
                    backoff.reset()
                self.health = Health(False, f"{death.reason}: {death.words}")
                log.error("engine ended (%d times in a row): %s: %s", deaths.in_a_row, death.reason, death.words)
                if death.final or deaths.total >= self._lives or deaths.unready >= QUICK_DEATHS:
                    raise EngineFailed(f"{_failure(death)}: {death.words}")
                so_far = f"ended {deaths.in_a_row} times in a row; the last time: {death.words}"
                if deaths.in_a_row >= CRASHES:
                    raise EngineFailed(f"CrashLoop: {so_far}")
                again = f"Restarting: {so_far}"
                await wait_or_timeout(self._again, backoff.seconds())

    def restart(self, prepare: Prepare, or_else: Prepare | None = None) -> None:
        """End the engine and start this one; `or_else` takes its place if it is never ready."""
        self.prepare, self._or_else, self.refused = prepare, or_else, ""
        self._again.set()

    def _fell_back(self, why: str) -> bool:
        other, self._or_else = self._or_else, None
        if other is None or self._ready_at is not None:
            return False
        self.prepare, self.refused = other, why
        self._again.set()
        return True

    async def _one_life(self, http: aiohttp.ClientSession, again: str) -> Death:
        """From start to death; answers what it died of. Raises EngineFailed when it cannot even be started, nor anything else.

        `again`: what there is to say while it loads, if it has died before.
        """
        self.health, self._ready_at = Health(False, again or "Loading"), None
        self.life += 1
        self.life_begun.emit()
        self._tail.clear()
        self._uds.unlink(missing_ok=True)
        try:
            command = await self.prepare()
            # A pipe of our own: with asyncio's, the wait for a death lasts as long as a worker left behind holds it open.
            output, input = os.pipe()
            with FileIO(output) as words:
                try:
                    process = await start_engine(command, stdout=input, stderr=input)
                finally:
                    os.close(input)
                return await self._watch(http, process, words)
        except EngineFailed as failed:
            if self._or_else is None and not self._again.is_set():
                raise
            return Death("EngineFailed", str(failed))

    async def _watch(self, http: aiohttp.ClientSession, process: asyncio.subprocess.Process, words: FileIO) -> Death:
        async with (
            running(self._relay(words)) as relay,
            running(self._probe(http)) as probe,
            running(process.wait()) as death,
            running(self._again.wait()) as again,
        ):
            try:
                await asyncio.wait({probe, death, again}, return_when=asyncio.FIRST_COMPLETED)
                by_itself, ended_at = death.done(), asyncio.get_running_loop().time()
            finally:
                self.health = Health(False, "EngineDied")
                await end_engine(process)
                await asyncio.wait({relay}, timeout=RELAY_SECONDS)
        if not by_itself:
            return (
                probe.result()
                if probe.done() and not probe.cancelled()
                else Death("Restarting", "it is being restarted")
            )
        assert process.returncode is not None
        return self._death(process.returncode, ended_at)

    def _death(self, code: int, ended_at: float) -> Death:
        """Say first what is certain: a signal has no reason in its words, and an old line is no reason for anything."""
        recent = [line for at, line in self._tail if ended_at - at < RECENT_SECONDS]
        how, why = how_it_ended(code), reason_given(recent)
        if out_of_memory(words := last_words(recent)):
            return Death("OutOfMemory", words)
        if why and code > 0:
            return Death("EngineDied", f"{how}: {why}")
        said = self._last_output(ended_at) if recent else f"it wrote nothing in its last {RECENT_SECONDS:g} s"
        return Death("EngineDied", f"{how}; {said}")

    def _last_output(self, now: float) -> str:
        if not self._tail:
            return "it has written nothing"
        at, _ = self._tail[-1]
        return f"its last output, {max(0.0, now - at):.0f} s before: {last_words([self._tail[-1][1]])}"

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
        now = asyncio.get_running_loop().time()
        self._tail.extend((now, text) for text in texts if text)
        # In a thread: the log lies on shared storage, which may stall, and this loop carries token streams.
        await asyncio.to_thread(_print, lines)

    async def _probe(self, http: aiohttp.ClientSession) -> Death:
        """Until it hangs, or has not become ready in time."""
        failed, loop = 0, asyncio.get_running_loop()
        deadline = loop.time() + self._startup
        while True:
            health = await self._ask(http)
            if health.ready:
                self._ready_at, failed = self._ready_at or loop.time(), 0
                self.health = health
            elif self._ready_at is not None:
                failed += 1
                self.health = health
                if failed >= FAILED_PROBES:
                    return Death("EngineDied", "it no longer answers /health")
            elif loop.time() > deadline:
                late = f"it was not ready after {self._startup:g} s (`engine.startupTimeoutSeconds`)"
                return Death("StartupTimeout", f"{late}; {self._last_output(loop.time())}", final=True)
            await asyncio.sleep(LOADING_PROBE_SECONDS if self._ready_at is None else PROBE_SECONDS)

    async def _ask(self, http: aiohttp.ClientSession) -> Health:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                async with http.get("http://engine/health") as answer:
                    if answer.status != 200:
                        return Health(False, f"Unhealthy: /health answered {answer.status}")
                async with http.get("http://engine/metrics", headers={"Accept-Encoding": "identity"}) as answer:
                    return self._healthy(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Health(False, f"Unhealthy: {type(error).__name__}")

    def _healthy(self, metrics: str) -> Health:
        load = read_load(metrics, life=self.life, at=asyncio.get_running_loop().time())
        return Health(True, "", load.running or 0, load.waiting, load.kv_usage, load.totals)


def _failure(death: Death) -> str:
    """The word for a death that is not followed by another life."""
    return "EngineFailed" if death.reason == "EngineDied" else death.reason


def _print(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
