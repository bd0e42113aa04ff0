"""Start, run and stop of the server. `parts_and_wakeups` connects the server's parts.

Only the data folder must survive a crash. Every start is a recovery: the server opens the store under a new epoch,
restores the leases of running rollouts, and only then publishes the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollyard.api.app import build
from rollyard.api.listener import listen
from rollyard.core.clock import SystemClock
from rollyard.core.errors import BadRequest, RollyardError, Superseded, Unavailable
from rollyard.core.exit_codes import REPLACED_EXIT
from rollyard.core.freed_memory import keep_freed_memory, return_freed_memory
from rollyard.core.lease_time import LEASE_SECONDS
from rollyard.core.telemetry import set_up_logging
from rollyard.kinds.installed_task_fields import installed_models
from rollyard.server.rollouts.result_pruner import ResultPruner
from rollyard.server.routing.endpoint_registry import HEARTBEAT_SECONDS
from rollyard.server_process.advertise import advertised
from rollyard.server_process.job.job_folder import ServerJobFolder
from rollyard.server_process.job.standby_jobs import StandbyKeeper
from rollyard.server_process.kubeconfig_link import link_newest
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.base import Driver
from rollyard.slurm.choose_driver import choose_driver
from rollyard.slurm.fenced_driver import FencedDriver
from rollyard.store.folder_lock import JobRun
from rollyard.store.store import Store
from rollyard.trust.endpoint_file import read_endpoint, write_endpoint
from rollyard.trust.secret_files import write_secret
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.files import EndpointFile

log = logging.getLogger(__name__)

EVENTS_KEPT_SECONDS = 24 * 3600.0
HOUSEKEEPING_SECONDS = 600.0
MEMORY_SECONDS = 60.0
STOP_SECONDS = 5.0
EPOCH_CHECK_SECONDS = 1.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServeOptions:
    """Options of `rollyard serve`."""

    data: Path
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    cluster: str = "auto"
    lease_seconds: float = LEASE_SECONDS
    in_job: bool = False
    """True: this process runs in the job that `serve --in-slurm` submitted."""

    def job_run(self) -> JobRun | None:
        """Return the Slurm job in which this process runs, and the job's restart count; None without `in_job`. Blocks.
        Raises BadRequest if this process is in no Slurm job, and Unavailable if the data folder cannot be used."""
        if not self.in_job:
            return None
        id = os.environ.get("SLURM_JOB_ID")
        if id is None:
            raise BadRequest("this process is not in a Slurm job; start the server with `rollyard serve --in-slurm`")
        try:
            name = ServerJobFolder(self.data, in_job=True).name
        except OSError as error:
            raise Unavailable(f"{error.filename or self.data} cannot be used: {error.strerror}") from None
        return JobRun(name, int(id), int(os.environ.get("SLURM_RESTART_COUNT") or 0))


def run(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT. Allocations stay for the next start. Return the exit status: 0 after a signal, 3
    if another server has taken the data folder, 1 after another RollyardError. Other exceptions are raised."""
    keep_freed_memory()
    set_up_logging()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one at a time, so threads only add costs
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # no warning about missing PyTorch
    os.umask(0o077)
    try:
        asyncio.run(_serve(options))
    except RollyardError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return REPLACED_EXIT if isinstance(error, Superseded) else 1
    return 0


async def _serve(options: ServeOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        server = await RollyardServer.start(options, stack)
        gc.collect()
        gc.freeze()  # else each full collection reads all modules and models, and blocks the event loop for 40 ms
        work = asyncio.create_task(server.run_background())
        stopped = asyncio.create_task(stop.wait())
        replaced = asyncio.create_task(server.wait_until_superseded())
        try:
            await asyncio.wait({work, stopped, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if replaced.done():
                replaced.result()
            if work.done():
                work.result()  # a part that ends is a bug: exit with its error; the next start recovers
        finally:
            for task in (work, stopped, replaced):
                task.cancel()
            await asyncio.gather(work, stopped, replaced, return_exceptions=True)


class RollyardServer:
    """All parts of the running server. The exit stack closes the parts in reverse order."""

    def __init__(self, store: Store, driver: Driver, data: Path, options: ServeOptions) -> None:
        self.store, self.driver, self.data, self.options = store, driver, data, options
        self.parts = Parts(store, driver, data, SystemClock(), options.lease_seconds)

    @classmethod
    async def start(cls, options: ServeOptions, stack: contextlib.AsyncExitStack) -> RollyardServer:
        """Open the store, recover, listen, and only then publish the address."""
        host, port = _address(options.listen)
        data = options.data.resolve()
        _check_path(data)
        last = read_endpoint(data / "endpoint.json")
        store = await Store.open(data, SystemClock(), options.job_run(), last.epoch if last is not None else 0)
        stack.push_async_callback(store.close)
        driver = FencedDriver(await choose_driver(options.cluster, data / "local-slurm"), store.confirm)
        stack.push_async_callback(driver.close)
        installed_models()  # before the first request, because modules of plug-ins may take long to import
        server = cls(store, driver, data, options)
        stack.push_async_callback(server.parts.close)
        write_secret(data / "ca.pem", server.parts.authority.ca_pem)
        await server.parts.rollouts.recover()
        await server.parts.sessions.restore()
        await server.parts.tokens.renew_jobs()  # the key may have been replaced by hand, or a rotation interrupted
        name = advertised(options.advertise, host)
        pem = server.parts.authority.server_certificate([name, "127.0.0.1", "localhost"])
        # A session's base URL has the port, so a server on any free port takes the port of the server before it.
        before = urlsplit(last.url).port if last is not None else None
        app, tls = build(server.parts.services()), server_ssl_context(pem)
        port = await listen(app, host, port, tls, stack, stop_seconds=STOP_SECONDS, preferred=before or 0)
        if driver.name != "local" and name in LOOPBACK:
            log.warning("serving on loopback: only this machine can reach the server; see --listen and --advertise")
        server.publish_address(f"https://{name}:{port}")
        return server

    def publish_address(self, url: str) -> None:
        """Write `endpoint.json` for our own processes and a kubeconfig for people; print one line of JSON for scripts."""
        write_endpoint(self.data / "endpoint.json", EndpointFile(url=url, epoch=self.store.epoch, job=self._job()))
        kubeconfig = self.data / "admin.kubeconfig"
        self.parts.tokens.write_kubeconfig(url)
        if (changed := link_newest(kubeconfig, Path.home() / ".rollyard" / "config")) is not None:
            log.warning("%s", changed)
        print(json.dumps({"event": "serving", "url": url, "kubeconfig": str(kubeconfig)}), flush=True)  # noqa: T201

    async def run_background(self) -> None:
        """Run all background tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            p = self.parts
            routing = (
                p.weights_watch,
                p.prober,
                p.rebalancer,
                p.lease_expiry,
                p.images,
                p.image_prefetcher,
                p.sessions,
                p.metric_recorder,
            )
            for part in (p.manager, p.dispatcher, p.resizer, p.batch_keeper, *routing):
                tasks.create_task(part.run())
            tasks.create_task(self._expire_endpoints())
            tasks.create_task(self._prune())
            tasks.create_task(self._return_memory())
            tasks.create_task(ResultPruner(self.store, p.clock).run())
            if self.options.in_job:
                keeper = StandbyKeeper(
                    ServerJobFolder(self.data, in_job=True), self.driver, lambda: p.feed.latest, p.clock
                )
                tasks.create_task(keeper.run())

    async def wait_until_superseded(self) -> None:
        """Wait until another server has taken the data folder; then raise Superseded."""
        while True:
            await asyncio.sleep(EPOCH_CHECK_SECONDS)
            try:
                await self.store.confirm()
            except Superseded:
                raise
            except Unavailable as error:
                log.warning("the data folder cannot be read: %s", error)

    def _job(self) -> str | None:
        return os.environ.get("SLURM_JOB_ID") if self.options.in_job else None

    async def _expire_endpoints(self) -> None:
        while True:
            self.parts.endpoints.expire()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _prune(self) -> None:
        while True:
            try:
                await self.store.objects.prune_events(self.parts.clock.time() - EVENTS_KEPT_SECONDS)
            except Unavailable as error:
                log.warning("old events were not deleted this time: %s", error)
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    async def _return_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_SECONDS)
            await asyncio.to_thread(return_freed_memory)


def _check_path(data: Path) -> None:
    """Raise BadRequest for a path that scripts, JSON and the store cannot hold."""
    try:
        str(data).encode()
    except UnicodeEncodeError:
        raise BadRequest(
            f"the path of the data folder is not valid UTF-8: {str(data)!a}; choose a folder whose path is"
        ) from None


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise BadRequest(f"--listen must be HOST:PORT, such as 127.0.0.1:0, not {listen!r}")
    return host.strip("[]"), int(port)
