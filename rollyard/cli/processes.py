"""Commands that are processes: the server, and what batch scripts run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rollyard import __version__


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="folder for everything the server keeps")
@click.option("--listen", default="127.0.0.1:0", help="HOST:PORT; port 0 takes a free one")
@click.option("--advertise", help="name or address by which others reach this machine")
@click.option("--cluster", type=click.Choice(["auto", "slurm", "local", "cli", "pyslurm"]), default="auto")
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=30.0,
    help="how long a silent node agent keeps its rollouts",
)
def serve(data: Path, listen: str, advertise: str | None, cluster: str, lease_seconds: float) -> None:
    """Run the server."""
    from rollyard.serve import Options, run

    sys.exit(run(Options(data, listen, advertise, cluster, lease_seconds)))


@click.command()
@click.option("--allocation", type=click.Path(path_type=Path), required=True)
def node_agent(allocation: Path) -> None:
    """Run by the batch script of a RolloutPool's allocation."""
    from rollyard.node_agent.main import main

    sys.exit(main(allocation))


@click.command()
@click.option("--allocation", type=click.Path(path_type=Path), required=True)
def inference_server(allocation: Path) -> None:
    """Run by the batch script of an InferencePool's allocation."""
    from rollyard.engines.main import main

    sys.exit(main(allocation))


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"rollyard {__version__}")
