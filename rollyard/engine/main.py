"""`rollyard inference-server`: engine, reverse proxy, registration and heartbeat of one allocation.

Exit status: 0 after a requested end (SIGTERM, SIGINT, a drain, or rank 0 has left the gang), 3 when another copy of the
allocation started first, 1 after any other error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import aiohttp

from rollyard.client.server_link import ServerLink, address_towards
from rollyard.core.aio import running, wait_or_timeout
from rollyard.core.backoff import Backoff
from rollyard.core.errors import ApiError, Fenced, Incompatible, Invalid, RollyardError, Unavailable
from rollyard.core.exit_codes import REPLACED_EXIT
from rollyard.core.process_tree import adopt_orphans, kill_below
from rollyard.core.telemetry import set_up_logging
from rollyard.core.tls_server import stop_tls_server
from rollyard.engine.gang.rendezvous import Gang
from rollyard.engine.gang.worker import run_worker
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.launch.template_check import check_template
from rollyard.engine.process.child_process import EngineFailed
from rollyard.engine.process.engine_supervisor import EngineHealth, Supervisor
from rollyard.engine.process.scratch_folder import scratch_folder
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.engine.weights.embedded_control import EmbeddedControl
from rollyard.engine.weights.engine_control import EngineControl
from rollyard.engine.weights.source import WeightsSource, with_weights
from rollyard.engine.weights.updater import DRAIN_SECONDS, WeightsUpdater
from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.trust.csr import new_key_and_csr
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.base import Identity
from rollyard.wire.engine import (
    EngineHeartbeat,
    EngineHello,
    EngineOrders,
    EngineWelcome,
    WeightsTarget,
    token_digest,
)
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)
T = TypeVar("T")

STOP_SECONDS = 5.0
"""Time that running requests get after SIGTERM. Slurm sends KILL some time after SIGTERM (KillWait), and the engine
needs a part of this time for its own end."""
LEFT_SECONDS = 5.0
"""Longest wait for killed processes at the end. Those that wait in the kernel for a file server are not waited for."""
FINISH_POLL_SECONDS = 0.2
SHARED_SIGNAL_SECONDS = 0.5
MAX_SOCKET_PATH = 107
"""Size of sockaddr_un.sun_path in bytes, less the terminating zero."""


def main(folder: Path) -> int:
    """Run until the engine fails or a stop is requested. Return the exit status."""
    set_up_logging()
    os.umask(0o077)
    adopt_orphans()  # if the owner of the engine's processes is killed, they become children of this process
    try:
        link = ServerLink.open(folder)
        with scratch_folder(Path(link.allocation.scratch)) as scratch:
            try:
                return _serve(link, scratch)
            finally:
                # Slurm may not find a process that has left both its session and its parents. What it holds in
                # /dev/shm can be removed only after its end.
                kill_below(LEFT_SECONDS)
    except (OSError, ValueError, RollyardError) as error:
        log.exception("the engine process cannot continue")
        log.critical("%s", error)  # the reason for this exit, which the allocation's condition quotes
        return 1


def _serve(link: ServerLink, scratch: Path) -> int:
    """Serve as the allocation's only process, or as one rank of a gang. Raises OSError, RollyardError."""
    spec = link.allocation.inference
    if spec is None:
        raise Invalid(f"{link.folder} is not the folder of an InferencePool's allocation")
    gang = Gang.of_step(link.folder)
    if gang is None:
        return asyncio.run(InferenceServer(link, spec, scratch, None).run())
    if gang.rank > 0:
        return asyncio.run(run_worker(gang, spec, scratch / "engine.sock"))
    try:
        return asyncio.run(InferenceServer(link, spec, scratch, gang).run())
    finally:
        gang.leave()


class InferenceServer:
    """One engine and its reverse proxy."""

    def __init__(self, link: ServerLink, spec: InferencePoolSpec, scratch: Path, gang: Gang | None) -> None:
        """`gang`: the gang that this process leads, if the engine spans nodes."""
        self._link = link
        self._spec = spec
        self._gang = gang
        self._scratch = scratch
        self._identity: Identity = link.identity()
        uds = scratch / "engine.sock"
        if len(os.fsencode(uds)) > MAX_SOCKET_PATH:
            raise Invalid(f"{uds} is too long for a socket; choose a shorter spec.allocation.scratch, such as /tmp")
        self._uds = uds
        self._closing = threading.Event()
        self._fatal: Reason | None = None
        self._stop = asyncio.Event()
        self._deadline = math.inf
        """Loop time at which running requests must have ended."""
        self._proxy: EngineProxy | None = None
        self._address = ""
        self._place: GangRank | None = None
        self._weights: WeightsUpdater | None = None
        self._template_checked = False
        self._tools: ToolProof | None = None

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._link.session())
            try:
                self._address = await self._until_stopped(self._own_address())
                self._supervisor = Supervisor(
                    LaunchPlan(self._spec, self._uds),
                    self._uds,
                    startup_seconds=self._spec.engine.startup_timeout_seconds,
                    max_deaths=math.inf if self._gang is None else 1,
                )
                engine = await stack.enter_async_context(self._supervisor.session())
                listener, url = _listener(self._address)
                stack.enter_context(listener)
                key, csr = new_key_and_csr(self._identity.allocation)
                welcome = await self._until_stopped(self._register(http, url, csr.decode()))
                assert welcome.certificate is not None
                self._proxy = EngineProxy(engine, welcome.token, self._closing.is_set)
                self._weights = self._make_updater(self._proxy, engine, welcome.weights)
                runner = await self._proxy.open(listener, self._tls(key, welcome.certificate))
                try:
                    return await self._serve(http, url, welcome.heartbeat_seconds)
                finally:
                    await stop_tls_server(runner)
            except Fenced as error:
                log.error("%s", error)
                return REPLACED_EXIT
            except _Stopped:
                return 0

    def _make_updater(
        self, proxy: EngineProxy, http: aiohttp.ClientSession, target: WeightsTarget | None
    ) -> WeightsUpdater:
        vllm = self._spec.engine.vllm
        control: EngineControl = EmbeddedControl(http) if vllm is None else VllmControl(http, vllm.extra_args)
        return WeightsUpdater(
            self._spec.model,
            target,
            self._supervisor,
            proxy,
            control,
            self._command,
            http,
            restarts=self._gang is None,
        )

    def _command(self, source: WeightsSource) -> LaunchPlan:
        folder = str(source.folder)
        if self._gang is not None and self._place is None:
            self._place = self._gang.lead(self._address, folder)
        return LaunchPlan(with_weights(self._spec, folder), self._uds, self._place)

    async def _until_stopped(self, work: Coroutine[None, None, T]) -> T:
        async with running(work) as task, running(self._stop.wait()) as stop:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _Stopped
            return task.result()

    async def _own_address(self) -> str:
        """Wait for the server's address; return this node's address towards the server."""
        backoff = Backoff()
        while True:
            try:
                return await asyncio.to_thread(address_towards, await self._link.url())
            except (Unavailable, OSError) as error:
                log.warning("%s", error)
                await backoff.wait()

    async def _register(self, http: aiohttp.ClientSession, url: str, csr: str | None) -> EngineWelcome:
        """Register; retry until the server accepts. Raises Fenced, Incompatible."""
        hello, backoff = EngineHello(identity=self._identity, url=url, csr=csr), Backoff()
        while True:
            try:
                answer = await self._link.post(http, "/v1/engine/register", hello.model_dump_json())
                return EngineWelcome.from_wire(answer)
            except (Fenced, Incompatible):
                raise
            except ApiError as error:
                log.warning("not registered yet: %s", error)
                await backoff.wait()

    def _tls(self, key: bytes, certificate: str) -> ssl.SSLContext:
        pem = self._scratch / "proxy.pem"
        pem.write_bytes(key + certificate.encode())  # the umask makes the file's mode 0600
        try:
            return server_ssl_context(pem)
        finally:
            pem.unlink()  # the key is now in memory only

    async def _serve(self, http: aiohttp.ClientSession, url: str, seconds: float) -> int:
        """Run the engine and the heartbeat until one of them ends or a stop is requested. Raises Fenced,
        Incompatible."""
        assert self._weights is not None
        async with (
            running(self._engine(self._weights)) as engine,
            running(self._beat(http, url, seconds)) as beat,
            running(self._stop.wait()) as stop,
        ):
            try:
                await asyncio.wait({engine, beat, stop}, return_when=asyncio.FIRST_COMPLETED)
                if beat.done():
                    beat.result()  # raises Fenced or Incompatible
                # The signal that ended the engine may have been sent to the whole job, and reach this process later.
                if engine.done() and not await wait_or_timeout(self._stop, SHARED_SIGNAL_SECONDS):
                    # The reason must reach the server before the job ends.
                    self._fatal = _reason(engine.exception())
                    log.critical("%s", self._fatal)
                    with contextlib.suppress(ApiError):
                        await self._send_heartbeat(http, url)
                    return 1
                await self._finish(http, url)
                if self._gang is not None:
                    self._gang.leave()  # before the engine ends: the other ranks must not take its end for a failure
                return 0
            finally:
                self._closing.set()

    async def _engine(self, weights: WeightsUpdater) -> None:
        """Run the engine for ever, and check the chat template during its start. Raises EngineFailed."""
        async with running(weights.run()) as engine, running(check_template(self._spec.model)) as check:
            await asyncio.wait({engine, check}, return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                self._tools = check.result()
                self._template_checked = True
            await engine

    async def _beat(self, http: aiohttp.ClientSession, url: str, seconds: float) -> None:
        """Report the engine's state every `seconds`, and at once after a change. Run for ever. Raises Fenced,
        Incompatible."""
        assert self._weights is not None
        assert self._proxy is not None
        sent: EngineHeartbeat | None = None
        due = 0.0
        loop = asyncio.get_running_loop()
        while True:
            beat = self._heartbeat(url)
            if sent is None or _changes_to_report(beat) != _changes_to_report(sent) or loop.time() >= due:
                try:
                    orders = await self._send_heartbeat(http, url)
                    if not orders.known:
                        welcome = await self._register(http, url, None)
                        self._proxy.accept(welcome.token)
                        self._weights.set_target(welcome.weights)
                        continue
                    self._weights.set_target(orders.weights)
                    if orders.tokens:
                        self._proxy.set_tokens(orders.tokens)
                    if orders.drain and not self._stop.is_set():
                        self._end_within(DRAIN_SECONDS)
                    sent, due = beat, loop.time() + seconds
                except (Fenced, Incompatible):
                    raise
                except ApiError as error:
                    log.warning("the server did not get the heartbeat: %s", error)
                    sent, due = beat, loop.time() + seconds / 2
            await asyncio.sleep(0.1)

    async def _send_heartbeat(self, http: aiohttp.ClientSession, url: str) -> EngineOrders:
        beat = self._heartbeat(url).model_dump_json()
        return EngineOrders.from_wire(await self._link.post(http, "/v1/engine/heartbeat", beat))

    def _heartbeat(self, url: str) -> EngineHeartbeat:
        health, weights = self._health(), self._weights
        assert weights is not None
        assert self._proxy is not None
        return EngineHeartbeat(
            identity=self._identity,
            url=url,
            ready=health.ready,
            reason=health.reason,
            weights=weights.report,
            running=health.running,
            waiting=health.waiting,
            kv_usage=health.kv_usage,
            load=health.load,
            tools=self._tools,
            context=health.context,
            token=token_digest(self._proxy.token),
        )

    def _health(self) -> EngineHealth:
        if self._fatal:
            return EngineHealth(False, self._fatal)
        if self._stop.is_set():
            # the load is still reported during the drain
            return replace(self._supervisor.health, ready=False, reason=Reason("Draining"))
        health, weights = self._supervisor.health, self._weights
        assert weights is not None
        if health.ready and not weights.proven:
            return replace(health, ready=False, reason=Reason("Proving"))
        if health.ready and not self._template_checked:
            return replace(health, ready=False, reason=Reason("CheckingTemplate"))
        if self._supervisor.life == 0 and weights.report.error:
            return replace(health, reason=None)  # the report of the weights has the reason
        return health

    def _signalled(self, number: signal.Signals) -> None:
        log.warning("received %s: running requests have %g s to finish", number.name, STOP_SECONDS)
        self._end_within(STOP_SECONDS)

    def _end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        self._stop.set()

    async def _finish(self, http: aiohttp.ClientSession, url: str) -> None:
        """Report the drain, so that no new requests come. Wait for the running requests until `_deadline`."""
        with contextlib.suppress(ApiError):
            await self._send_heartbeat(http, url)
        assert self._proxy is not None
        while asyncio.get_running_loop().time() < self._deadline:  # SIGTERM during a drain makes the deadline earlier
            if await wait_or_timeout(self._proxy.idle, FINISH_POLL_SECONDS):
                return


def _listener(address: str) -> tuple[socket.socket, str]:
    """Return a bound socket on a free port of this address, and its URL. Raises OSError."""
    v6 = ":" in address
    listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    listener.bind((address, 0))
    return listener, f"https://{f'[{address}]' if v6 else address}:{listener.getsockname()[1]}"


def _changes_to_report(beat: EngineHeartbeat) -> tuple[object, ...]:
    """Return the fields whose changes are reported to the server at once."""
    return beat.ready, beat.reason, beat.weights, beat.token


def _reason(error: BaseException | None) -> Reason:
    if isinstance(error, EngineFailed):
        return error.why
    log.error("the supervisor failed", exc_info=error)
    return Reason("EngineFailed", f"{type(error).__name__}: {error}")


class _Stopped(Exception):
    """SIGTERM or SIGINT came before the engine was registered."""
