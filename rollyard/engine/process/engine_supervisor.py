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
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, end_engine, exit_text, start_engine
from rollyard.engine.process.crash_reason import crash_reason, is_out_of_memory, stated_reason
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
class EngineHealth:
    ready: bool
    reason: str
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1, None when it does not say so; so too `waiting`."""
    load: EngineLoad | None = None


@dataclass(frozen=True, slots=True)
class EngineDeath:
    reason: str
    output: str
    final: bool = False
    """Trying again here would only take as long again."""


@dataclass(slots=True)
class DeathCounts:
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
        self.launch_failure = ""
        """What `restart` led to, once that was given up for the other one."""
        self._fallback: Prepare | None = None
        self._restart_requested = asyncio.Event()
        self._remaining_starts = lives
        self._uds = uds
        self._startup = startup_seconds
        self._last_lines: deque[tuple[float, str]] = deque(maxlen=TAIL_LINES)
        """(loop time, line)."""
        self._ready_at: float | None = None
        """Loop time at which this life was first ready."""
        self.health = EngineHealth(False, "Starting")

    def session(self) -> aiohttp.ClientSession:
        """A session whose every request goes to the engine; bodies come as they are, compressed or not."""
        connector = aiohttp.UnixConnector(path=str(self._uds), limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def run(self) -> None:
        """For ever. Raises EngineFailed when the engine has no life left, or dies again and again."""
        backoff, deaths, loop = Backoff(0.5, 30.0), DeathCounts(), asyncio.get_running_loop()
        again = ""
        async with self.session() as http:
            while True:
                if self._restart_requested.is_set():  # also where it was asked for between two lives
                    self._restart_requested.clear()
                    backoff, deaths, again = Backoff(0.5, 30.0), DeathCounts(deaths.total), ""
                death = await self._one_life(http, again)
                if self._restart_requested.is_set() or self._use_fallback(death.output):
                    continue
                deaths.add(None if self._ready_at is None else loop.time() - self._ready_at)
                if deaths.in_a_row == 1:
                    backoff.reset()
                self.health = EngineHealth(False, f"{death.reason}: {death.output}")
                log.error("engine ended (%d times in a row): %s: %s", deaths.in_a_row, death.reason, death.output)
                if death.final or deaths.total >= self._remaining_starts or deaths.unready >= QUICK_DEATHS:
                    raise EngineFailed(f"{_failure_word(death)}: {death.output}")
                so_far = f"ended {deaths.in_a_row} times in a row; the last time: {death.output}"
                if deaths.in_a_row >= CRASHES:
                    raise EngineFailed(f"CrashLoop: {so_far}")
                again = f"Restarting: {so_far}"
                await wait_or_timeout(self._restart_requested, backoff.seconds())

    def restart(self, prepare: Prepare, or_else: Prepare | None = None) -> None:
        """End the engine and start this one; `or_else` takes its place if it is never ready."""
        self.prepare, self._fallback, self.launch_failure = prepare, or_else, ""
        self._restart_requested.set()

    def _use_fallback(self, why: str) -> bool:
        other, self._fallback = self._fallback, None
        if other is None or self._ready_at is not None:
            return False
        self.prepare, self.launch_failure = other, why
        self._restart_requested.set()
        return True

    async def _one_life(self, http: aiohttp.ClientSession, again: str) -> EngineDeath:
        """From start to death; answers what it died of. Raises EngineFailed when it cannot even be started, nor anything else.

        `again`: what there is to say while it loads, if it has died before.
        """
        self.health, self._ready_at = EngineHealth(False, again or "Loading"), None
        self.life += 1
        self.life_begun.emit()
        self._last_lines.clear()
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
            if self._fallback is None and not self._restart_requested.is_set():
                raise
            return EngineDeath("EngineFailed", str(failed))

    async def _watch(
        self, http: aiohttp.ClientSession, process: asyncio.subprocess.Process, words: FileIO
    ) -> EngineDeath:
        async with (
            running(self._relay_output(words)) as relay,
            running(self._probe(http)) as probe,
            running(process.wait()) as death,
            running(self._restart_requested.wait()) as again,
        ):
            try:
                await asyncio.wait({probe, death, again}, return_when=asyncio.FIRST_COMPLETED)
                by_itself, ended_at = death.done(), asyncio.get_running_loop().time()
            finally:
                self.health = EngineHealth(False, "EngineDied")
                await end_engine(process)
                await asyncio.wait({relay}, timeout=RELAY_SECONDS)
        if not by_itself:
            return (
                probe.result()
                if probe.done() and not probe.cancelled()
                else EngineDeath("Restarting", "it is being restarted")
            )
        assert process.returncode is not None
        return self._death(process.returncode, ended_at)

    def _death(self, code: int, ended_at: float) -> EngineDeath:
        """Say first what is certain: a signal has no reason in its words, and an old line is no reason for anything."""
        recent = [line for at, line in self._last_lines if ended_at - at < RECENT_SECONDS]
        how, why = exit_text(code), stated_reason(recent)
        if is_out_of_memory(words := crash_reason(recent)):
            return EngineDeath("OutOfMemory", words)
        if why and code > 0:
            return EngineDeath("EngineDied", f"{how}: {why}")
        said = self._last_output(ended_at) if recent else f"it wrote nothing in its last {RECENT_SECONDS:g} s"
        return EngineDeath("EngineDied", f"{how}; {said}")

    def _last_output(self, now: float) -> str:
        if not self._last_lines:
            return "it has written nothing"
        at, _ = self._last_lines[-1]
        return f"its last output, {max(0.0, now - at):.0f} s before: {crash_reason([self._last_lines[-1][1]])}"

    async def _relay_output(self, words: FileIO) -> None:
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
                await self._print_output(lines + end)
            await self._print_output(rest)
        finally:
            transport.close()

    async def _print_output(self, lines: bytes) -> None:
        texts = (line.strip() for line in lines.decode(errors="replace").split("\n"))
        now = asyncio.get_running_loop().time()
        self._last_lines.extend((now, text) for text in texts if text)
        # In a thread: the log lies on shared storage, which may stall, and this loop carries token streams.
        await asyncio.to_thread(_print, lines)

    async def _probe(self, http: aiohttp.ClientSession) -> EngineDeath:
        """Until it hangs, or has not become ready in time."""
        failed, loop = 0, asyncio.get_running_loop()
        deadline = loop.time() + self._startup
        while True:
            health = await self._probe_once(http)
            if health.ready:
                self._ready_at, failed = self._ready_at or loop.time(), 0
                self.health = health
            elif self._ready_at is not None:
                failed += 1
                self.health = health
                if failed >= FAILED_PROBES:
                    return EngineDeath("EngineDied", "it no longer answers /health")
            elif loop.time() > deadline:
                late = f"it was not ready after {self._startup:g} s (`engine.startupTimeoutSeconds`)"
                return EngineDeath("StartupTimeout", f"{late}; {self._last_output(loop.time())}", final=True)
            await asyncio.sleep(LOADING_PROBE_SECONDS if self._ready_at is None else PROBE_SECONDS)

    async def _probe_once(self, http: aiohttp.ClientSession) -> EngineHealth:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                async with http.get("http://engine/health") as answer:
                    if answer.status != 200:
                        return EngineHealth(False, f"Unhealthy: /health answered {answer.status}")
                async with http.get("http://engine/metrics", headers={"Accept-Encoding": "identity"}) as answer:
                    return self._healthy(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return EngineHealth(False, f"Unhealthy: {type(error).__name__}")

    def _healthy(self, metrics: str) -> EngineHealth:
        load = read_load(metrics, life=self.life, at=asyncio.get_running_loop().time())
        return EngineHealth(True, "", load.running or 0, load.waiting, load.kv_usage, load.totals)


def _failure_word(death: EngineDeath) -> str:
    """The word for a death that is not followed by another life."""
    return "EngineFailed" if death.reason == "EngineDied" else death.reason


def _print(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
