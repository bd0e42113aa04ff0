"""Keeps one engine process alive behind a Unix socket, and reports why the engine is not ready."""

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

from rollyard.core.aio import Signal, running, wait_or_timeout
from rollyard.core.backoff import Backoff
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, exit_text
from rollyard.engine.process.crash_reason import crash_reason, is_out_of_memory, stated_reason
from rollyard.engine.process.metrics_scrape import read_load
from rollyard.engine.process.owned_engine import EngineRemains, OwnedEngine, start_engine
from rollyard.kinds.base import Reason
from rollyard.wire.engine import UNHEALTHY, EngineLoad
from rollyard.wire.model_list import MALFORMED_LIST, listed_context

log = logging.getLogger(__name__)

Prepare = Callable[[], Awaitable[EngineCommand]]
"""Function that returns the engine's command. It is called before each start, because the node may have changed. The
function may raise EngineFailed."""

LOADING_PROBE_SECONDS, PROBE_SECONDS, PROBE_TIMEOUT_SECONDS = 0.1, 1.0, 5.0
FAILED_PROBES = 5
IDLE_SECONDS = 1.0
"""Age above which an idle connection is not used again. vLLM closes idle connections after 5 s: a request that is sent at
this moment fails as if the engine had died."""
RELAY_SECONDS = 2.0
"""Limit for reading the last output of an engine that has ended."""
RECENT_SECONDS = 10.0
"""Greatest age of output that is used to explain a death, except after an error during the start (`_death`). When one of
vLLM's processes has printed the reason, it takes some seconds until all of them have ended."""
RELAY_BYTES = 64 << 10
"""Number of bytes to read at a time. A longer line is split."""
TAIL_LINES = 500
"""Number of last lines of output to keep. The tracebacks of all processes of vLLM must fit."""
QUICK_DEATHS = 3
"""The engine is not restarted after this many deaths in a row, each before the engine was ready."""
STEADY_SECONDS = 120.0
"""An engine that has been ready for this time counts as steady. Its death is the first of a new row of deaths."""
CRASHES = 5
"""The engine is not restarted on this node after this many deaths in a row, if it was never steady between them."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    ready: bool
    reason: Reason | None = None
    """Reason why the engine is not ready."""
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1. None, here and in `waiting`: the engine does not report the
    value."""
    load: EngineLoad | None = None
    context: int | None = None
    """Length of the context in tokens; None if the engine does not report it."""


@dataclass(frozen=True, slots=True)
class EngineDeath:
    why: Reason
    final: bool = False
    """True: another start on this node would fail in the same way."""


@dataclass(slots=True)
class DeathCounts:
    total: int = 0
    unready: int = 0
    """Number of deaths in a row, each before the engine was ready."""
    in_a_row: int = 0
    """Number of deaths since the engine was last steady. A death of a steady engine counts as the first."""

    def add(self, lived: float | None) -> None:
        """Add a death. `lived`: seconds from ready to death; None if the engine was never ready."""
        self.total += 1
        self.unready = self.unready + 1 if lived is None else 0
        self.in_a_row = 1 if lived is not None and lived >= STEADY_SECONDS else self.in_a_row + 1


class Supervisor:
    """Starts the engine, probes it, restarts it with back-off, and ends it."""

    def __init__(
        self, prepare: Prepare, uds: Path, *, startup_seconds: float = 1800.0, max_deaths: float = math.inf
    ) -> None:
        """`max_deaths`: number of deaths after which the engine is not restarted. It is 1 in a gang, because the gang's
        other ranks do not restart."""
        self.prepare = prepare
        """Function that prepares the next start."""
        self.life = 0
        """Number of starts."""
        self.life_begun = Signal[[]]()
        """Signal at each start of the engine, before its process starts."""
        self.launch_failure = ""
        """Reason why the last `restart` changed to its fallback; empty if it did not."""
        self._fallback: Prepare | None = None
        self._restart_requested = asyncio.Event()
        self._max_deaths = max_deaths
        self._uds = uds
        self._startup = startup_seconds
        self._last_lines: deque[tuple[float, str]] = deque(maxlen=TAIL_LINES)
        """Pairs of (loop time, line)."""
        self._ready_at: float | None = None
        """Loop time at which the current process was first ready."""
        self._context: int | None = None
        """Length of the current process's context in tokens."""
        self.health = EngineHealth(False, Reason("Starting"))

    def session(self) -> aiohttp.ClientSession:
        """Return a session that sends every request to the engine. Bodies are not decompressed."""
        connector = aiohttp.UnixConnector(path=str(self._uds), limit=0, keepalive_timeout=IDLE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def run(self) -> None:
        """Run for ever. Raises EngineFailed if the engine cannot be started, or dies again and again."""
        backoff, deaths, loop = Backoff(0.5, 30.0), DeathCounts(), asyncio.get_running_loop()
        again: Reason | None = None
        async with self.session() as http:
            while True:
                if self._restart_requested.is_set():  # the request may have come between two starts
                    self._restart_requested.clear()
                    backoff, deaths, again = Backoff(0.5, 30.0), DeathCounts(deaths.total), None
                death = await self._one_life(http, again)
                if self._restart_requested.is_set() or self._use_fallback(death.why.message):
                    continue
                deaths.add(None if self._ready_at is None else loop.time() - self._ready_at)
                if deaths.in_a_row == 1:
                    backoff.reset()
                self.health = EngineHealth(False, death.why)
                log.error("engine ended (%d times in a row): %s", deaths.in_a_row, death.why)
                if death.final or deaths.total >= self._max_deaths or deaths.unready >= QUICK_DEATHS:
                    raise EngineFailed(_final_reason(death.why))
                so_far = f"ended {deaths.in_a_row} times in a row; the last time: {death.why.message}"
                if deaths.in_a_row >= CRASHES:
                    raise EngineFailed(Reason("CrashLoop", so_far))
                again = Reason("Restarting", so_far)
                await wait_or_timeout(self._restart_requested, backoff.seconds())

    def restart(self, prepare: Prepare, or_else: Prepare | None = None) -> None:
        """End the engine and start it with the command of `prepare`. If the engine does not get ready, start it with
        the command of `or_else`."""
        self.prepare, self._fallback, self.launch_failure = prepare, or_else, ""
        self._restart_requested.set()

    def _use_fallback(self, why: str) -> bool:
        other, self._fallback = self._fallback, None
        if other is None or self._ready_at is not None:
            return False
        self.prepare, self.launch_failure = other, why
        self._restart_requested.set()
        return True

    async def _one_life(self, http: aiohttp.ClientSession, again: Reason | None) -> EngineDeath:
        """Run one process from start to death, and return the death. Raises EngineFailed if the engine cannot be
        started, or if its processes do not end, and no fallback or requested restart follows.

        `again`: the reason to report while the engine loads, if it has died before.
        """
        self.health, self._ready_at = EngineHealth(False, again or Reason("Loading")), None
        self.life += 1
        self.life_begun.emit()
        self._last_lines.clear()
        self._uds.unlink(missing_ok=True)
        try:
            command = await self.prepare()
            # The output is read until all of the engine's processes have ended, not only until the engine has.
            output, input = os.pipe()
            with FileIO(output) as words:
                try:
                    engine = await start_engine(command, self._uds.parent, stdout=input, stderr=input)
                finally:
                    os.close(input)
                return await self._watch(http, engine, words)
        except EngineRemains:
            raise
        except EngineFailed as failed:
            if self._fallback is None and not self._restart_requested.is_set():
                raise
            return EngineDeath(Reason("EngineFailed", str(failed)))

    async def _watch(self, http: aiohttp.ClientSession, engine: OwnedEngine, words: FileIO) -> EngineDeath:
        async with (
            running(self._relay_output(words)) as relay,
            running(self._probe(http)) as probe,
            running(engine.wait()) as death,
            running(self._restart_requested.wait()) as again,
        ):
            try:
                await asyncio.wait({probe, death, again}, return_when=asyncio.FIRST_COMPLETED)
                by_itself, ended_at = death.done(), asyncio.get_running_loop().time()
            finally:
                self.health = EngineHealth(False, Reason("EngineDied"))
                remains = await _end(engine)
                await asyncio.wait({relay}, timeout=RELAY_SECONDS)
        if remains is not None:
            raise remains
        if not by_itself:
            return (
                probe.result()
                if probe.done() and not probe.cancelled()
                else EngineDeath(Reason("Restarting", "it is being restarted"))
            )
        return self._death(death.result(), ended_at)

    def _death(self, code: int, ended_at: float) -> EngineDeath:
        """Describe a death: the exit code or signal, then the engine's last output. If the engine stated a reason, this
        reason replaces the output: vLLM may exit with code 0 after an error. If the engine ran out of memory, describe
        only that.

        Output of the last `RECENT_SECONDS` is searched. If an engine exits before it is ready, all kept output is
        searched: on a busy machine, vLLM's processes need up to a minute to end after one of them has printed the reason.
        """
        recent = [line for at, line in self._last_lines if ended_at - at < RECENT_SECONDS]
        starting = code >= 0 and self._ready_at is None
        lines = [line for _, line in self._last_lines] if starting else recent
        how, why = exit_text(code), stated_reason(lines)
        if is_out_of_memory(words := crash_reason(lines)):
            return EngineDeath(Reason("OutOfMemory", words))
        if why and code >= 0:
            return EngineDeath(Reason("EngineDied", f"{how}: {why}"))
        output = self._last_output(ended_at) if recent else f"it wrote nothing in its last {RECENT_SECONDS:g} s"
        return EngineDeath(Reason("EngineDied", f"{how}; {output}"))

    def _last_output(self, now: float) -> str:
        if not self._last_lines:
            return "it has written nothing"
        at, _ = self._last_lines[-1]
        return f"its last output, {max(0.0, now - at):.0f} s before: {crash_reason([self._last_lines[-1][1]])}"

    async def _relay_output(self, words: FileIO) -> None:
        """Copy the engine's output to the job's log. Keep the last lines to explain a death."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), words
        )
        try:
            rest = b""
            while data := await reader.read(RELAY_BYTES):
                lines, end, rest = (rest + data).rpartition(b"\n")
                if len(rest) > RELAY_BYTES:  # the line is too long to be kept until its end
                    end, rest = end + rest, b""
                await self._print_output(lines + end)
            await self._print_output(rest)
        finally:
            transport.close()

    async def _print_output(self, lines: bytes) -> None:
        texts = (line.strip() for line in lines.decode(errors="replace").split("\n"))
        now = asyncio.get_running_loop().time()
        self._last_lines.extend((now, text) for text in texts if text)
        # In a thread: the log is on shared storage, which may stall. The event loop relays tokens and must go on.
        await asyncio.to_thread(_print, lines)

    async def _probe(self, http: aiohttp.ClientSession) -> EngineDeath:
        """Probe the engine until it no longer answers, or until its start has taken too long."""
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
                    return EngineDeath(Reason("EngineDied", "it no longer answers /health"))
            elif loop.time() > deadline:
                late = f"it was not ready after {self._startup:g} s (`engine.startupTimeoutSeconds`)"
                return EngineDeath(Reason("StartupTimeout", f"{late}; {self._last_output(loop.time())}"), final=True)
            await asyncio.sleep(LOADING_PROBE_SECONDS if self._ready_at is None else PROBE_SECONDS)

    async def _probe_once(self, http: aiohttp.ClientSession) -> EngineHealth:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                async with http.get("http://engine/health") as answer:
                    if answer.status != 200:
                        return EngineHealth(False, Reason(UNHEALTHY, f"/health answered {answer.status}"))
                if self._ready_at is None:
                    self._context = await _context_length(http)
                async with http.get("http://engine/metrics", headers={"Accept-Encoding": "identity"}) as answer:
                    return self._healthy(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return EngineHealth(False, Reason(UNHEALTHY, type(error).__name__))

    def _healthy(self, metrics: str) -> EngineHealth:
        load = read_load(metrics, life=self.life, at=asyncio.get_running_loop().time())
        return EngineHealth(True, None, load.running or 0, load.waiting, load.kv_usage, load.totals, self._context)


async def _context_length(http: aiohttp.ClientSession) -> int | None:
    """Read the length of the context from the list of models; None if the list does not have it."""
    async with http.get("http://engine/v1/models", headers={"Accept-Encoding": "identity"}) as answer:
        try:
            return listed_context(await answer.json()) if answer.status == 200 else None
        except (aiohttp.ContentTypeError, ValueError, *MALFORMED_LIST):
            return None


async def _end(engine: OwnedEngine) -> EngineRemains | None:
    """End the engine. The error is returned, because it must not replace a cancellation."""
    try:
        await engine.end()
    except EngineRemains as remains:
        return remains
    return None


def _final_reason(why: Reason) -> Reason:
    """Return the reason for a death after which the engine is not started again."""
    return Reason("EngineFailed", why.message) if why.word == "EngineDied" else why


def _print(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
