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
from functools import partial
from pathlib import Path

import aiohttp

from rollyard.client.server_link import ServerLink, address_towards
from rollyard.core.backoff import until_done
from rollyard.core.errors import Fenced, Invalid, RollyardError, Unavailable
from rollyard.core.exit_codes import REPLACED_EXIT
from rollyard.core.process_tree import adopt_orphans, kill_below
from rollyard.core.telemetry import set_up_logging
from rollyard.core.tls_server import stop_tls_server
from rollyard.engine.end_request import EndRequest, EndRequested
from rollyard.engine.gang.rendezvous import Gang
from rollyard.engine.gang.worker import run_worker
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.launch.launch_plan import LaunchPlan, with_weights
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.process.scratch_folder import scratch_folder
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.registered_engine import RegisteredEngine
from rollyard.engine.registration import Registration
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.engine.weights.embedded_control import EmbeddedControl
from rollyard.engine.weights.engine_control import EngineControl
from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.updater import WeightsUpdater
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.trust.csr import new_key_and_csr
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.engine import EngineWelcome

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""Time that running requests get after SIGTERM. Slurm sends KILL some time after SIGTERM (KillWait), and the engine
needs a part of this time for its own end."""
LEFT_SECONDS = 5.0
"""Longest wait for killed processes at the end. Those that wait in the kernel for a file server are not waited for."""
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
    """One engine and its reverse proxy, from the start of the process to its end."""

    def __init__(self, link: ServerLink, spec: InferencePoolSpec, scratch: Path, gang: Gang | None) -> None:
        """`gang`: the gang that this process leads, if the engine spans nodes."""
        self._link = link
        self._spec = spec
        self._gang = gang
        self._scratch = scratch
        uds = scratch / "engine.sock"
        if len(os.fsencode(uds)) > MAX_SOCKET_PATH:
            raise Invalid(f"{uds} is too long for a socket; choose a shorter spec.allocation.scratch, such as /tmp")
        self._uds = uds
        self._end = EndRequest()
        self._place: GangRank | None = None

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._link.session())
            try:
                address = await self._end.result_of(self._own_address())
                supervisor = Supervisor(
                    LaunchPlan(self._spec, self._uds),
                    self._uds,
                    startup_seconds=self._spec.engine.startup_timeout_seconds,
                    max_deaths=math.inf if self._gang is None else 1,
                )
                engine = await stack.enter_async_context(supervisor.session())
                listener, url = _listener(address)
                stack.enter_context(listener)
                registration = Registration(self._link, http, url)
                key, csr = new_key_and_csr(registration.identity.allocation)
                welcome = await self._end.result_of(registration.register(csr.decode()))
                proxy = EngineProxy(engine, welcome.token)
                weights = WeightsUpdater(
                    self._spec.model,
                    welcome.weights,
                    supervisor,
                    proxy,
                    self._control(engine),
                    partial(self._command, address),
                    engine,
                    restarts=self._gang is None,
                )
                runner = await proxy.open(listener, self._tls(key, welcome))
                registered = RegisteredEngine(
                    registration, self._spec.model, supervisor, weights, proxy, self._end, self._gang
                )
                try:
                    return await registered.serve(welcome.heartbeat_seconds)
                finally:
                    await stop_tls_server(runner)
            except Fenced as error:
                log.error("%s", error)
                return REPLACED_EXIT
            except EndRequested:
                return 0

    def _control(self, http: aiohttp.ClientSession) -> EngineControl:
        vllm = self._spec.engine.vllm
        return EmbeddedControl(http) if vllm is None else VllmControl(http, vllm.extra_args)

    def _command(self, address: str, source: WeightsSource) -> LaunchPlan:
        folder = str(source.folder)
        if self._gang is not None and self._place is None:
            self._place = self._gang.lead(address, folder)
        return LaunchPlan(with_weights(self._spec, folder), self._uds, self._place)

    async def _own_address(self) -> str:
        """Wait for the server's address; return this node's address towards the server."""

        async def find() -> str:
            return await asyncio.to_thread(address_towards, await self._link.url())

        return await until_done(find, "looking for the server's address", after=(Unavailable, OSError))

    def _tls(self, key: bytes, welcome: EngineWelcome) -> ssl.SSLContext:
        if welcome.certificate is None:
            raise Invalid("the server sent no certificate for this engine; update the server")
        pem = self._scratch / "proxy.pem"
        pem.write_bytes(key + welcome.certificate.encode())  # the umask makes the file's mode 0600
        try:
            return server_ssl_context(pem)
        finally:
            pem.unlink()  # the key is now in memory only

    def _signalled(self, number: signal.Signals) -> None:
        log.warning("received %s: running requests have %g s to finish", number.name, STOP_SECONDS)
        self._end.end_within(STOP_SECONDS)


def _listener(address: str) -> tuple[socket.socket, str]:
    """Return a bound socket on a free port of this address, and its URL. Raises OSError."""
    v6 = ":" in address
    listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    listener.bind((address, 0))
    return listener, f"https://{f'[{address}]' if v6 else address}:{listener.getsockname()[1]}"
