"""`rollyard serve --in-slurm`: submits the server's job if there is none, and waits until the server answers."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollyard.core.errors import BadRequest, SlurmUnreachable, Unavailable
from rollyard.kinds.values.job_state import JobState
from rollyard.server_process.job.job_folder import ServerJobFolder
from rollyard.server_process.job.job_script import JobOptions, server_script
from rollyard.slurm.base import Driver, Job
from rollyard.slurm.choose_driver import choose_driver
from rollyard.store.folder_lock import FolderLock
from rollyard.wire.files import EndpointFile

POLL_SECONDS = 0.5
CONNECT_SECONDS = 5.0
STOP_SECONDS = 120.0
"""Seconds within which cancelled jobs must end. Slurm kills them after its KillWait."""
Print = Callable[[str], None]
"""Function that prints progress for the waiting user."""


@dataclass(frozen=True)
class RunningServer:
    url: str
    kubeconfig: str
    job: str
    node: str


@dataclass(frozen=True)
class ServerJobRequest:
    data: Path
    cluster: str
    """Value of `serve --cluster`; `local` is refused."""
    arguments: Sequence[str]
    """Arguments of `serve` in the job, besides --data and --cluster."""
    options: JobOptions
    wait_seconds: float


async def start(request: ServerJobRequest, report: Print) -> RunningServer:
    """Start a server, or find the running one. Raises RollyardError, for example if another server has the folder, if
    the job is refused or has ended, or if the server does not serve in time."""
    place, driver = await _open(request)
    try:
        live = await _live_jobs(place, driver)
        if live:
            report(f"job {', '.join(job.id for job in live)} already exists; its options stay as they were submitted")
            if (
                await asyncio.to_thread(place.desired_script) is None
            ):  # an interrupted --stop removed the script; standby jobs need it
                await asyncio.to_thread(place.write_script, _script(place, request))
        else:
            await asyncio.to_thread(_check_free, place)
            (id,) = await driver.submit(place.write_script(_script(place, request)))
            report(f"submitted job {id}; its log is {place.log}")
        async with asyncio.timeout(request.wait_seconds):
            return await _wait_until_serving(place, driver, report)
    except TimeoutError:
        raise Unavailable(
            f"the server does not serve yet after {request.wait_seconds:g} s; its job stays queued or running. The same "
            f"command waits again, --stop ends the job ({place.last_log_line() or 'its log is empty'})"
        ) from None
    finally:
        await driver.close()


async def stop(request: ServerJobRequest) -> list[str]:
    """Stop the server and its standby jobs; return their job ids. Allocations stay. Raises RollyardError."""
    place, driver = await _open(request)
    ended: dict[str, None] = {}
    try:
        # Remove the script before the jobs: while the script exists, a running server submits standby jobs.
        await asyncio.to_thread(place.remove_script)
        async with asyncio.timeout(STOP_SECONDS):
            while live := await _live_jobs(place, driver):
                ended |= dict.fromkeys(job.id for job in live)
                await driver.cancel([job.id for job in live])
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise Unavailable(f"job {', '.join(ended)} has not ended after {STOP_SECONDS:g} s; check squeue") from None
    finally:
        await driver.close()
    return list(ended)


async def _open(request: ServerJobRequest) -> tuple[ServerJobFolder, Driver]:
    if request.cluster == "local":
        raise BadRequest("--in-slurm needs a Slurm cluster; leave out --cluster or --in-slurm")
    try:
        place = await asyncio.to_thread(ServerJobFolder, request.data)
    except OSError as error:
        raise Unavailable(f"{error.filename} cannot be used: {error.strerror}") from None
    return place, await choose_driver(_cluster(request), place.data / "local-slurm")


def _cluster(request: ServerJobRequest) -> str:
    return "slurm" if request.cluster == "auto" else request.cluster


def _script(place: ServerJobFolder, request: ServerJobRequest) -> str:
    run = [sys.executable, "-m", "rollyard.cli.main", "server-job", "--data", str(place.data)]
    command = [*run, "--cluster", _cluster(request), *request.arguments]
    return server_script(request.options, name=place.name, comment=place.comment, log=str(place.log), command=command)


def _check_free(place: ServerJobFolder) -> None:
    """Raise Unavailable if a process that belongs to none of the server's jobs has the folder.

    One of these jobs may still have the folder on a lost node. That is no obstacle: Slurm has just reported that none
    of these jobs lives, so the next job takes the folder over.
    """
    lock = FolderLock(place.data)
    try:
        if not lock.acquire() and ((holder := lock.holder_run()) is None or holder.name != place.name):
            raise lock.refusal()
    finally:
        lock.release()


async def _live_jobs(place: ServerJobFolder, driver: Driver) -> list[Job]:
    return place.live_jobs(await driver.list_jobs())


async def _wait_until_serving(place: ServerJobFolder, driver: Driver, report: Print) -> RunningServer:
    reported = ""
    while True:
        try:
            live = await _live_jobs(place, driver)
        except SlurmUnreachable as error:
            live, reported = None, _print_once(report, reported, f"Slurm does not answer: {error}")
        if live == []:
            raise Unavailable(f"the server's job has ended: {place.last_log_line() or f'see {place.log}'}")
        running = {job.id: job for job in live or () if job.state is JobState.RUNNING}
        found = _endpoint(place.data)
        if found is not None and found.job in running:
            trouble = await _why_unreachable(found.url, place.data / "ca.pem")
            if not trouble:
                kubeconfig = str(place.data / "admin.kubeconfig")
                return RunningServer(found.url, kubeconfig, found.job, running[found.job].node)
            reported = _print_once(
                report, reported, f"this machine cannot reach {found.url} ({trouble}); see --advertise"
            )
        elif live and not running:
            reported = _print_once(
                report, reported, f"job {live[0].id} waits: {live[0].reason or 'it was just submitted'}"
            )
        await asyncio.sleep(POLL_SECONDS)


def _print_once(report: Print, reported: str, now: str) -> str:
    if now != reported:
        report(now)
    return now


def _endpoint(data: Path) -> EndpointFile | None:
    try:
        return EndpointFile.model_validate_json((data / "endpoint.json").read_bytes())
    except (OSError, ValueError):
        return None  # no server has served yet


async def _why_unreachable(url: str, ca: Path) -> str:
    """Return the reason why the server cannot be reached; empty if it can. The server's certificate is checked."""
    parts = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=ca)
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    except (OSError, ssl.SSLError, TimeoutError) as error:
        return str(error) or type(error).__name__
    writer.close()
    return ""
