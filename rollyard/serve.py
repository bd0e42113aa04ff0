"""The server: the composition root, the only module that knows all its parts.

Everything here but the store is disposable. A start is a recovery: open the store, take the folder's lock and the next
epoch, adopt what runs, and only then say where we are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import aiohttp

from rollyard.advertise import advertised
from rollyard.api.app import build
from rollyard.api.listener import listen
from rollyard.api.placement import SessionPlacement
from rollyard.api.services import Services
from rollyard.clock import SystemClock
from rollyard.errors import BadRequest, RollyardError, Superseded, Unavailable
from rollyard.gateway.outside import OutsideSessions
from rollyard.in_slurm.keeper import SuccessorKeeper
from rollyard.in_slurm.place import Place
from rollyard.inference.endpoints import HEARTBEAT_SECONDS, Endpoints
from rollyard.inference.prober import Prober
from rollyard.inference.state import EndpointState
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool, Stages
from rollyard.kinds.wire import EndpointFile
from rollyard.reconcilers.build import build_manager
from rollyard.reconcilers.preview import Preview
from rollyard.reconcilers.snapshots import SnapshotFeed
from rollyard.reconcilers.workspace import Workspace
from rollyard.rollouts.agents import Agents, NodeAgent
from rollyard.rollouts.dispatch import Dispatcher
from rollyard.rollouts.leases import Leases
from rollyard.rollouts.repin import Repinner
from rollyard.rollouts.resizer import Resizer
from rollyard.rollouts.service import Rollouts
from rollyard.rollouts.weights_watch import WeightsWatch
from rollyard.slurm.base import Driver
from rollyard.slurm.choose import choose_driver
from rollyard.slurm.guard import Guarded
from rollyard.store.lock import JobRun
from rollyard.store.sqlite import SqliteStore
from rollyard.telemetry import STAGE_WORKERS, set_up_logging
from rollyard.trust.ca import Authority
from rollyard.trust.endpoint_file import read_endpoint, write_endpoint
from rollyard.trust.kubeconfig import write_kubeconfig
from rollyard.trust.secrets import write_secret
from rollyard.trust.tls import client_ssl_context, server_ssl_context
from rollyard.trust.tokens import Role, TokenSigner

log = logging.getLogger(__name__)

EVENTS_KEPT_SECONDS = 24 * 3600.0
HOUSEKEEPING_SECONDS = 600.0
LEASE_SECONDS = 15.0
STOP_SECONDS = 5.0
CONFIRM_SECONDS = 1.0
SUPERSEDED_EXIT = 3
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SCALE_SECONDS = 0.2
"""What is submitted in one go is scaled for in one go."""
SHOWN_SECONDS = 1.0
"""Widths in a status are at most so old while they change."""


@dataclass(frozen=True)
class Options:
    """What `rollyard serve` was told."""

    data: Path
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    cluster: str = "auto"
    lease_seconds: float = LEASE_SECONDS
    in_job: bool = False
    """We run in the job that `serve --in-slurm` submitted."""

    def job_run(self) -> JobRun | None:
        """Which run of which job we are. Blocks; raises BadRequest outside of a job."""
        if not self.in_job:
            return None
        id = os.environ.get("SLURM_JOB_ID")
        if id is None:
            raise BadRequest("this is no Slurm job; start the server with `rollyard serve --in-slurm`")
        return JobRun(Place(self.data).name, int(id), int(os.environ.get("SLURM_RESTART_COUNT") or 0))


def run(options: Options) -> int:
    """Serve until SIGTERM or SIGINT; allocations stay, the next start adopts them. 3 when a newer server took over."""
    set_up_logging()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: threads would only cost
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it misses PyTorch, which nothing here needs
    os.umask(0o077)
    try:
        asyncio.run(_serve(options))
    except RollyardError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return SUPERSEDED_EXIT if isinstance(error, Superseded) else 1
    return 0


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        server = await Server.start(options, stack)
        work = asyncio.create_task(server.work())
        stopped = asyncio.create_task(stop.wait())
        replaced = asyncio.create_task(server.until_superseded())
        try:
            await asyncio.wait({work, stopped, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if replaced.done():
                replaced.result()
            if work.done():
                work.result()  # a part of the server that ends is a bug: end loudly, the next start recovers
        finally:
            for task in (work, stopped, replaced):
                task.cancel()
            await asyncio.gather(work, stopped, replaced, return_exceptions=True)


class Server:
    """All parts, put together; the exit stack closes them in the reverse order."""

    def __init__(self, store: SqliteStore, driver: Driver, data: Path, options: Options) -> None:
        self.store, self.driver, self.data, self.options = store, driver, data, options
        self.clock = clock = SystemClock()
        self.authority = Authority.open(data / "keys")
        self.signer = TokenSigner.open(data / "keys" / "token.key")
        self.endpoints, self.agents = Endpoints(clock), Agents()
        leases = Leases(clock, options.lease_seconds)
        self.rollouts = Rollouts(store, clock, self.agents, leases)
        trust = client_ssl_context(self.authority.ca_pem)
        self.sessions = OutsideSessions(aiohttp.TCPConnector(ssl=trust, limit=0), SessionPlacement(self.endpoints))
        self.prober = Prober(self.endpoints, self._inference_pools, trust)
        self.repinner = Repinner(clock, self.agents, leases, self.endpoints)
        self.dispatcher = Dispatcher(store, clock, self.agents, leases, self.endpoints, self._rollout_pool)
        self.weights_watch = WeightsWatch(self.rollouts, self.endpoints, self._rollout_pools, clock)
        self.resizer = Resizer(clock, self.agents, self.rollouts.queued, self._stages)
        self.workspace = Workspace(data, store.server_id, lambda role, uid: self.signer.issue(role, uid))
        self.feed = SnapshotFeed(driver, clock)
        self.manager = build_manager(
            store, driver, self.feed, self.workspace, self.agents, self.endpoints, self.rollouts, clock
        )
        self._join()

    @classmethod
    async def start(cls, options: Options, stack: contextlib.AsyncExitStack) -> Server:
        """Open, recover, listen, and only then say where we are."""
        host, port = _address(options.listen)
        data = options.data.resolve()
        told = read_endpoint(data / "endpoint.json")
        store = await SqliteStore.open(data, SystemClock(), options.job_run(), told.epoch if told is not None else 0)
        stack.push_async_callback(store.close)
        driver = Guarded(await choose_driver(options.cluster, data / "local-slurm"), store.confirm)
        stack.push_async_callback(driver.close)
        server = cls(store, driver, data, options)
        stack.push_async_callback(server.sessions.shut_down)
        write_secret(data / "ca.pem", server.authority.ca_pem)
        await server.rollouts.recover()
        name = advertised(options.advertise, host)
        pem = server.authority.server_certificate([name, "127.0.0.1", "localhost"])
        port = await listen(
            build(server.services()), host, port, server_ssl_context(pem), stack, stop_seconds=STOP_SECONDS
        )
        if driver.name != "local" and name in LOOPBACK:
            log.warning(
                "serving on loopback: only nodes that are this machine get through; see --listen and --advertise"
            )
        server.announce(f"https://{name}:{port}")
        return server

    def services(self) -> Services:
        preview = Preview(self.workspace, self.feed)
        return Services(
            store=self.store,
            clock=self.clock,
            rollouts=self.rollouts,
            agents=self.agents,
            endpoints=self.endpoints,
            sessions=self.sessions,
            signer=self.signer,
            authority=self.authority,
            log_file=self.workspace.log_file,
            check_allocation=preview.check,
            submission=preview.submission,
            task_kinds=frozenset(e.name for e in entry_points(group="rollyard.tasks")),
        )

    def announce(self, url: str) -> None:
        """`endpoint.json` for our own processes, a kubeconfig for people, one line of JSON for scripts."""
        write_endpoint(self.data / "endpoint.json", EndpointFile(url=url, epoch=self.store.epoch, job=self._job()))
        kubeconfig = self.data / "admin.kubeconfig"
        write_kubeconfig(kubeconfig, url, self.authority.ca_pem, self.signer.issue(Role.ADMIN, "admin"))
        _link_newest(kubeconfig)
        print(json.dumps({"event": "serving", "url": url, "kubeconfig": str(kubeconfig)}), flush=True)  # noqa: T201

    async def work(self) -> None:
        """Everything that runs beside the listener, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.manager, self.dispatcher, self.resizer, self.weights_watch, self.prober, self.repinner):
                tasks.create_task(part.run())
            tasks.create_task(self.rollouts.sweep())
            tasks.create_task(self.sessions.run())
            tasks.create_task(self._expire_endpoints())
            tasks.create_task(self._prune())
            if self.options.in_job:
                keeper = SuccessorKeeper(Place(self.data), self.driver, lambda: self.feed.latest, self.clock)
                tasks.create_task(keeper.run())

    async def until_superseded(self) -> None:
        """Ends by raising Superseded, soon after another server has taken the data folder over."""
        while True:
            await asyncio.sleep(CONFIRM_SECONDS)
            try:
                await self.store.confirm()
            except Superseded:
                raise
            except Unavailable as error:
                log.warning("the data folder cannot be read: %s", error)

    def _join(self) -> None:
        """Which change in one part wakes which other."""

        def agent_moved(agent: NodeAgent) -> None:
            namespace, pool = agent.pool
            self.dispatcher.wake(agent.pool)
            self.resizer.wake(agent.pool)
            self.manager.add(ObjectKey(kind="RolloutPool", namespace=namespace, name=pool))
            self.manager.add(ObjectKey(kind="Allocation", namespace=namespace, name=agent.identity.allocation))

        def agent_resized(agent: NodeAgent) -> None:
            namespace, pool = agent.pool
            self.resizer.wake(agent.pool)
            self.manager.add(ObjectKey(kind="RolloutPool", namespace=namespace, name=pool), SHOWN_SECONDS)

        def room_came(pool: tuple[str, str]) -> None:
            for agent in self.agents.all():
                if agent.pool[0] == pool[0]:
                    self.dispatcher.wake(agent.pool)

        def weights_moved(pool: tuple[str, str]) -> None:
            room_came(pool)
            self.weights_watch.wake()

        def endpoint_moved(state: EndpointState) -> None:
            weights_moved(state.pool)
            self.repinner.wake()
            namespace, pool = state.pool
            self.manager.add(ObjectKey(kind="InferencePool", namespace=namespace, name=pool))
            if state.allocation:
                self.manager.add(ObjectKey(kind="Allocation", namespace=namespace, name=state.allocation))

        def work_came(pool: tuple[str, str], at: float = 0.0) -> None:
            self.dispatcher.wake(pool, at)
            self.resizer.wake(pool)
            self.manager.add(ObjectKey(kind="RolloutPool", namespace=pool[0], name=pool[1]), SCALE_SECONDS)

        def session_wanted(pool: tuple[str, str]) -> None:
            self.manager.add(ObjectKey(kind="InferencePool", namespace=pool[0], name=pool[1]))

        self.rollouts.outside, self.sessions.counted = self.sessions.held, self.endpoints.counted
        self.rollouts.asked_outside, self.sessions.wanted = self.sessions.asked, session_wanted
        self.rollouts.wake, self.agents.room = work_came, self.dispatcher.wake
        self.agents.moved, self.endpoints.moved = agent_moved, endpoint_moved
        self.endpoints.room, self.endpoints.suspected = room_came, self.prober.wake
        self.endpoints.relisted = self.prober.relist
        leases = self.rollouts.leases
        self.endpoints.sessions = lambda id: leases.sessions(id) + self.sessions.on(id)
        leases.counted = self.endpoints.counted
        self.endpoints.weights_moved = weights_moved
        self.agents.resized, self.agents.worked = agent_resized, lambda agent: self.resizer.wake(agent.pool)
        for stage in Stage:
            STAGE_WORKERS.labels(stage.value.lower()).set_function(partial(self.agents.width, stage))

    def _job(self) -> str | None:
        return os.environ.get("SLURM_JOB_ID") if self.options.in_job else None

    async def _rollout_pool(self, key: tuple[str, str]) -> RolloutPool:
        found = await self.store.get(ObjectKey(kind="RolloutPool", namespace=key[0], name=key[1]))
        assert isinstance(found, RolloutPool)
        return found

    async def _rollout_pools(self) -> list[RolloutPool]:
        found, _ = await self.store.list_objects("RolloutPool")
        return [p for p in found if isinstance(p, RolloutPool)]

    async def _stages(self, key: tuple[str, str]) -> Stages:
        return (await self._rollout_pool(key)).spec.stages

    async def _inference_pools(self) -> list[InferencePool]:
        found, _ = await self.store.list_objects("InferencePool")
        return [p for p in found if isinstance(p, InferencePool)]

    async def _expire_endpoints(self) -> None:
        while True:
            self.endpoints.expire()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _prune(self) -> None:
        while True:
            try:
                await self.store.prune_events(self.clock.time() - EVENTS_KEPT_SECONDS)
            except Unavailable as error:
                log.warning("old events stay for now: %s", error)
            await asyncio.sleep(HOUSEKEEPING_SECONDS)


def _link_newest(kubeconfig: Path) -> None:
    """`~/.rollyard/config` is the newest server's, so that the CLI finds it; a home that cannot be written is no error."""
    link = Path.home() / ".rollyard" / "config"
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = link.with_name(f".config.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(kubeconfig)
        fresh.replace(link)


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise BadRequest(f"--listen takes HOST:PORT, such as 127.0.0.1:0, not {listen!r}")
    return host.strip("[]"), int(port)
