"""Commands that run processes: the server, and the processes that batch scripts start."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollyard import __version__
from rollyard.core import garbage_search
from rollyard.core.lease_time import LEASE_SECONDS

if TYPE_CHECKING:
    from rollyard.server_process.job.submit_job import ServerJobRequest


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="folder for all data of the server")
@click.option("--listen", help="HOST:PORT; port 0: any free port  [default: 127.0.0.1:0, in a job 0.0.0.0:0]")
@click.option("--advertise", help="name, address or network interface by which others reach this machine")
@click.option(
    "--cluster",
    default="auto",
    help="cluster that runs allocations; `rollyard doctor` lists the choices  [default: auto]",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=LEASE_SECONDS,
    show_default=True,
    help="seconds after which a silent node agent loses its rollouts",
)
@click.option("--in-slurm", is_flag=True, help="run the server as a Slurm job with standby jobs; return when it serves")
@click.option("--stop", is_flag=True, help="with --in-slurm: end that job and its standby jobs; allocations continue")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=600.0, help="with --in-slurm: seconds to wait until it serves"
)
@click.option(
    "--setup", default="", help="with --in-slurm: shell lines to run before the server, such as `module load python`"
)
@click.option("--partition", help="with --in-slurm: option of sbatch")
@click.option("--account", help="with --in-slurm: option of sbatch")
@click.option("--qos", help="with --in-slurm: option of sbatch")
@click.option("--time", help="with --in-slurm: walltime; prefer a long one  [default: the partition's]")
@click.option("--constraint", help="with --in-slurm: option of sbatch")
@click.option("--cpus-per-task", default="2", help="with --in-slurm: option of sbatch  [default: 2]")
@click.option("--mem", default="4G", help="with --in-slurm: option of sbatch  [default: 4G]")
@click.option(
    "--sbatch",
    multiple=True,
    metavar="OPTION[=VALUE]",
    help="with --in-slurm: further long option of sbatch, without dashes",
)
@click.option("--in-job", is_flag=True, hidden=True)
def serve(
    data: Path,
    listen: str | None,
    advertise: str | None,
    cluster: str,
    lease_seconds: float,
    in_slurm: bool,
    stop: bool,
    wait: float,
    setup: str,
    sbatch: tuple[str, ...],
    in_job: bool,
    **job: str | None,
) -> None:
    """Run the server, here or (with --in-slurm) as a Slurm job."""
    if not in_slurm:
        with garbage_search.imports():
            from rollyard.server_process.main import ServeOptions, run

        if stop:
            raise click.UsageError("--stop works with --in-slurm only; stop a server in a shell with Ctrl-C or TERM")
        sys.exit(run(ServeOptions(data, listen or "127.0.0.1:0", advertise, cluster, lease_seconds, in_job)))

    from rollyard.server_process.job.job_script import JobOptions
    from rollyard.server_process.job.submit_job import ServerJobRequest

    further = {option: value for option, _, value in (word.partition("=") for word in sbatch)}
    directives = {option.replace("_", "-"): value for option, value in job.items() if value is not None}
    arguments = ["--listen", listen or "0.0.0.0:0", "--lease-seconds", f"{lease_seconds:g}"]
    arguments += ["--advertise", advertise] if advertise is not None else []
    _in_slurm(ServerJobRequest(data, cluster, arguments, JobOptions({**directives, **further}, setup), wait), stop)


def _in_slurm(request: ServerJobRequest, stop: bool) -> None:
    from rollyard.server_process.job import submit_job as front

    if stop:
        ended = asyncio.run(front.stop(request))
        click.echo(json.dumps({"event": "stopped", "jobs": ended}))
    else:
        serving = asyncio.run(front.start(request, lambda said: click.echo(said, err=True)))
        click.echo(json.dumps({"event": "serving", **asdict(serving)}))


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--data", type=click.Path(path_type=Path), required=True, help="data folder of the server")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def server_job(data: Path, arguments: tuple[str, ...]) -> None:
    """Run the server in its own job, whose script calls this."""
    from rollyard.server_process.job.job_folder import ServerJobFolder
    from rollyard.server_process.job.server_supervisor import run

    command = [sys.executable, "-m", "rollyard.cli.main", "serve", "--in-job", "--data", str(data), *arguments]
    sys.exit(run(ServerJobFolder(data, in_job=True), command))


@click.command()
@click.option("--allocation", type=click.Path(path_type=Path), required=True, help="folder of the allocation")
def node_agent(allocation: Path) -> None:
    """Run a node agent; batch scripts of RolloutPools call this."""
    with garbage_search.imports():
        from rollyard.node.main import main

    sys.exit(main(allocation))


@click.command()
@click.option("--allocation", type=click.Path(path_type=Path), required=True, help="folder of the allocation")
def inference_server(allocation: Path) -> None:
    """Run an engine; batch scripts of InferencePools call this."""
    with garbage_search.imports():
        from rollyard.engine.main import main

    sys.exit(main(allocation))


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"rollyard {__version__}")
