"""Which driver to use: named by `--cluster`, or found by a probe of what answers here."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from rollyard.errors import Invalid, SlurmUnreachable
from rollyard.slurm.base import Driver
from rollyard.slurm.budget import Budgeted
from rollyard.slurm.cli import CliDriver
from rollyard.slurm.local import LocalDriver
from rollyard.slurm.within import Within

CLUSTERS = ("auto", "slurm", "local", "cli")
PROBE_SECONDS = 15.0


async def choose_driver(cluster: str, folder: Path) -> Driver:
    """The driver for `--cluster`; `folder` is where the local one keeps its jobs.

    `auto` takes Slurm where its commands are installed and configured, else this machine. A Slurm that is configured and
    does not answer is waited for, not replaced: its jobs are still there. Raises Invalid for an unknown word.
    """
    match cluster:
        case "local":
            return LocalDriver(folder)
        case "cli" | "slurm":
            return Budgeted(Within(_cli(cluster), _cli(cluster), folder))
        case "auto":
            cli = CliDriver()
            return Budgeted(Within(cli, cli, folder)) if await slurm_is_here() else LocalDriver(folder)
        case _:
            raise Invalid(f"--cluster {cluster}: write one of {', '.join(CLUSTERS)}")


def _cli(cluster: str) -> CliDriver:
    if shutil.which("sbatch") is None:
        raise Invalid(f"--cluster {cluster}: there is no sbatch on this machine's PATH; use --cluster local")
    return CliDriver()


async def slurm_is_here() -> bool:
    """Whether this machine belongs to a cluster, even to one that is down just now."""
    if shutil.which("sbatch") is None:
        return False
    if "SLURM_CONF" in os.environ or await asyncio.to_thread(os.path.exists, "/etc/slurm/slurm.conf"):
        return True
    try:  # a machine without a file of its own may get its configuration from slurmctld
        async with asyncio.timeout(PROBE_SECONDS):
            await CliDriver().snapshot()
    except (SlurmUnreachable, TimeoutError):
        return False
    return True
