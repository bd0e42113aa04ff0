"""Probes a compute node. A job runs the probes on the node, connects to this machine, and writes a report.

This module has both sides: `probe_node` runs on this machine, `report` runs in the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rollyard.core.errors import RollyardError, SlurmUnreachable, Unavailable
from rollyard.core.lagging_files import read_when_complete
from rollyard.doctor import this_machine
from rollyard.doctor.data_folder import clocks
from rollyard.doctor.finding import Finding, findings
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.server_process.advertise import advertised
from rollyard.slurm.base import Driver, Job
from rollyard.slurm.batch_script import JOB_PREFIX, batch_script
from rollyard.slurm.choose_driver import slurm_driver, slurm_is_here

POLL_SECONDS = 0.5
DIAL_SECONDS = 10.0
REPORT_GRACE_SECONDS = 60.0
"""Time to wait for the report after the job's end. NFS clients may cache attributes for this time (acregmax, acdirmax)."""


@dataclass(frozen=True)
class NodeProbeRequest:
    data: Path
    """The data folder. The job tests whether the node has this folder under the same path."""
    scratch: Path
    template: AllocationTemplate
    advertise: str | None
    wait_seconds: float


def probe_node(question: NodeProbeRequest) -> Iterator[Finding]:
    """Probe one node with a job. Raises RollyardError, OSError."""
    question.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=question.data.resolve()))
    try:
        with _listener() as port:
            request = {
                "host": advertised(question.advertise, "0.0.0.0"),
                "port": port,
                "scratch": str(question.scratch),
            }
            (folder / "request.json").write_text(json.dumps(request))
            # The file is created before the first read, because an NFS client caches that a file is missing. For an
            # existing file, the client checks at each open whether the file has changed.
            (folder / "report.json").touch()
            yield from asyncio.run(_run_probe_job(question, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_probe_job(question: NodeProbeRequest, folder: Path) -> list[Finding]:
    if not await slurm_is_here():
        raise Unavailable(
            "this machine reaches no Slurm: it has neither Slurm's commands with a configuration, nor ROLLYARD_SLURMRESTD"
        )
    name = f"{JOB_PREFIX}doctor-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "rollyard.cli.main", "doctor", "--report", str(folder)]
    script = batch_script(
        question.template,
        name=name, comment=f"rollyard-doctor:{name}", log_path=str(folder / "log"), directory=str(folder), command=command,
    )  # fmt: skip
    driver, _ = await slurm_driver()
    try:
        (id,) = await driver.submit(script)
        try:
            return await _wait_for_report(driver, id, folder, question.wait_seconds)
        finally:
            with contextlib.suppress(RollyardError):
                await driver.cancel([id])
    finally:
        await driver.close()


async def _wait_for_report(driver: Driver, id: str, folder: Path, seconds: float) -> list[Finding]:
    deadline, job = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        if found := _read(folder / "report.json"):
            return found
        if job is None or not job.state.ended:
            with contextlib.suppress(SlurmUnreachable):
                job = (await driver.list_jobs()).jobs.get(id)
            if job is not None and job.state.ended:
                deadline = time.monotonic() + REPORT_GRACE_SECONDS
        await asyncio.sleep(POLL_SECONDS)
    if job is not None and job.state.ended:
        return [Finding("FAIL", "node", _why_no_report(job, folder))]
    why = f"is {job.state.value} {job.reason}".rstrip() if job is not None else "is not in the queue"
    words = f"job {id} {why} after {seconds:g} s; try a partition or account in which it starts, or a longer --wait"
    return [Finding("WARN", "node", words)]


def _read(file: Path) -> list[Finding]:
    """Return the findings of the report; empty until the report is complete."""
    text = file.read_text()
    if not text.endswith("\n"):
        return []
    report = json.loads(text)
    return [Finding(f["level"], f"{report['node']}: {f['what']}", f["detail"]) for f in report["findings"]]


def _why_no_report(job: Job, folder: Path) -> str:
    try:
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    reason = (
        lines[-1]
        if lines
        else "it wrote no log here, so perhaps the node does not have this folder under the same path"
    )
    return f"job {job.id} on {job.node or 'no node'} ended {job.state.value} without a report: {reason}"


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    """Listen on a port and send this machine's time to every connection. Yields the port."""
    with socket.create_server(("", 0)) as server:
        threading.Thread(target=_send_time, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _send_time(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(f"{time.time():.3f}\n".encode())


def report(folder: Path) -> None:
    """Run the probes inside the job, and write the report. Raises OSError."""
    file = folder / "request.json"
    request = read_when_complete(lambda: json.loads(file.read_text()), str(file))
    made = [
        *findings(this_machine.probes(Path(request["scratch"]))),
        *findings([("network", lambda: _dial(request["host"], request["port"]))]),
    ]
    answer = {"node": socket.gethostname(), "findings": [asdict(found) for found in made]}
    (folder / "report.json").write_text(json.dumps(answer) + "\n")


def _dial(host: str, port: int) -> Iterator[Finding]:
    try:
        before = time.time()
        with socket.create_connection((host, port), timeout=DIAL_SECONDS) as connection:
            theirs = float(connection.makefile().readline())
        after = time.time()
    except (OSError, ValueError) as error:
        advice = "name another address or interface with --advertise, or open the firewall for the nodes"
        yield Finding("FAIL", "network", f"this node cannot reach {host}:{port} ({error}); {advice}")
        return
    yield Finding("OK", "network", f"this node reaches {host}:{port} in {1e3 * (after - before):.1f} ms")
    yield clocks("clock", (before + after) / 2 - theirs, "this node")
