"""Keeps one engine process alive behind a Unix socket, and always knows why it is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rollyard.client.link import Backoff
from rollyard.engines.command import EngineCommand

log = logging.getLogger(__name__)

STARTUP_SECONDS = 1800.0
"""A large model takes minutes to load."""
PROBE_SECONDS, PROBE_TIMEOUT_SECONDS = 1.0, 5.0
FAILED_PROBES = 5
STOP_SECONDS = 10.0
QUICK_DEATHS = 3
"""Deaths before it was ever ready, in a row, after which no restart will help."""
_GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class EngineFailed(Exception):
    """The engine cannot be kept alive; the message is for the pool's condition."""


class Supervisor:
    """Starts the engine, asks it how it is, restarts it with back-off, ends it."""

    def __init__(self, command: EngineCommand, uds: Path, *, startup_seconds: float = STARTUP_SECONDS) -> None:
        self._command = command
        self._uds = uds
        self._startup = startup_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._tail: deque[str] = deque(maxlen=20)
        self.health = Health(False, "Starting")

    def session(self) -> aiohttp.ClientSession:
        """A session whose every request goes to the engine."""
        connector = aiohttp.UnixConnector(path=str(self._uds), limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0))

    async def run(self) -> None:
        """For ever. Raises EngineFailed when the engine dies again and again before it was ready."""
        backoff, quick = Backoff(0.5, 30.0), 0
        async with self.session() as http:
            while True:
                was_ready = await self._one_life(http)
                why = self._tail[-1] if self._tail else "it said nothing"
                quick = 0 if was_ready else quick + 1
                if was_ready:
                    backoff.reset()
                self.health = Health(False, f"EngineDied: {why}")
                log.error("engine ended (%d times before it was ready): %s", quick, why)
                if quick >= QUICK_DEATHS:
                    raise EngineFailed(f"EngineFailed: {why}")
                await backoff.wait()

    async def _one_life(self, http: aiohttp.ClientSession) -> bool:
        """From start to death; answers whether it was ready in between."""
        self.health = Health(False, "Loading")
        self._uds.unlink(missing_ok=True)
        env = {**os.environ, **self._command.env}
        self._process = await asyncio.create_subprocess_exec(
            *self._command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        relay = asyncio.create_task(self._relay(self._process))
        probe = asyncio.create_task(self._probe(http))
        death = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({probe, death}, return_when=asyncio.FIRST_COMPLETED)
            return self.health.ready or (probe.done() and not probe.cancelled() and probe.result())
        finally:
            was_ready = self.health.ready
            await self._end(self._process)
            for task in (probe, death):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await relay
            if was_ready:
                self.health = Health(False, "EngineDied")

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        """The engine's words go to the job's log; the last ones are kept to explain a death."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if not line:
                return
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if text := line.decode(errors="replace").strip():
                self._tail.append(text)

    async def _probe(self, http: aiohttp.ClientSession) -> bool:
        """Until it hangs; answers whether it was ever ready."""
        ever, failed, loop = False, 0, asyncio.get_running_loop()
        deadline = loop.time() + self._startup
        while True:
            health = await self._ask(http)
            if health.ready:
                ever, failed = True, 0
                self.health = health
            elif ever:
                failed += 1
                self.health = Health(False, health.reason)
                if failed >= FAILED_PROBES:
                    self._tail.append("it does not answer /health any more")
                    return ever
            elif loop.time() > deadline:
                self._tail.append(f"it was not ready after {self._startup:g} s")
                return ever
            await asyncio.sleep(PROBE_SECONDS if ever else 0.1)

    async def _ask(self, http: aiohttp.ClientSession) -> Health:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                async with http.get("http://engine/health") as answer:
                    if answer.status != 200:
                        return Health(False, f"Unhealthy: /health answers {answer.status}")
                async with http.get("http://engine/metrics") as answer:
                    return _load(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Health(False, f"Unhealthy: {type(error).__name__}")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """TERM, then KILL, to the engine's whole group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.wait()), STOP_SECONDS)


def _load(metrics: str) -> Health:
    """vLLM's gauges; one that is missing counts nothing."""
    found = {name: _gauge(metrics, metric) for name, metric in _GAUGES.items()}
    return Health(True, "", int(found["running"]), int(found["waiting"]), found["kv_usage"])


def _gauge(metrics: str, name: str) -> float:
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", metrics, re.MULTILINE))
