"""Choice of the driver: by the word in `--cluster`, or by a probe of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rollyard.core.errors import Invalid, SlurmUnreachable
from rollyard.slurm.base import Driver
from rollyard.slurm.call_budget import BudgetedDriver
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.job_step_driver import JobStepDriver
from rollyard.slurm.local_driver import LocalDriver
from rollyard.slurm.pyslurm_driver import PYTHON_VARIABLE, PyslurmDriver, why_unfit
from rollyard.slurm.rest.address import URL_VARIABLE, SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.rest_driver import RestDriver

CLUSTERS = ("auto", "slurm", "local", "cli", "pyslurm", "rest")
PROBE_SECONDS = 15.0


async def choose_driver(cluster: str, folder: Path) -> Driver:
    """Return the driver for the word in `--cluster`. `folder`: folder in which the local driver keeps its jobs.

    With `auto`, the first choice is Slurm's commands, if they are installed and configured; queries go through pyslurm,
    if it works on this machine. The second choice is slurmrestd, if the environment has its address; the third is the
    local driver. If a configured Slurm does not answer, no other driver is taken: Slurm's jobs still exist, so the
    server waits for Slurm. Raises Invalid for an unknown word, and for a driver that cannot be used on this machine.
    """
    match cluster:
        case "local":
            return LocalDriver(folder)
        case "cli" | "slurm":
            return _wrap(_cli(cluster), folder)
        case "pyslurm":
            return _wrap(await _pyslurm(cluster), folder)
        case "rest":
            return _wrap(_rest(), folder)
        case "auto":
            return _wrap((await slurm_driver())[0], folder) if await slurm_is_here() else LocalDriver(folder)
        case _:
            raise Invalid(f"--cluster {cluster}: write one of {', '.join(CLUSTERS)}")


def _wrap(driver: Driver, folder: Path) -> Driver:
    """Extend a driver: it can also run steps in jobs that users already have, and all calls go through the budget."""
    return BudgetedDriver(JobStepDriver(driver, CliDriver(), folder))


def _cli(cluster: str) -> CliDriver:
    if shutil.which("sbatch") is None:
        raise Invalid(f"--cluster {cluster}: there is no sbatch on this machine's PATH; use --cluster local")
    return CliDriver()


def _rest() -> RestDriver:
    """Return the slurmrestd driver. Raises Invalid if the environment has no valid address."""
    return RestDriver(SlurmrestdAddress.of_environment(os.environ), SlurmCredentials.of_environment(os.environ))


async def _pyslurm(cluster: str) -> PyslurmDriver:
    _cli(cluster)  # the pyslurm driver submits with Slurm's commands
    driver = PyslurmDriver()
    try:
        await driver.version()
    except SlurmUnreachable as error:
        await driver.close()
        raise Invalid(
            f"--cluster {cluster}: {error}; install it for this Python, name another in {PYTHON_VARIABLE}, "
            "or use --cluster cli"
        ) from None
    return driver


async def slurm_driver() -> tuple[Driver, Mapping[str, str]]:
    """Return the driver that `auto` takes on a machine with Slurm, and why it did not take a better driver.

    The reasons are a mapping: name of the better driver -> reason.
    """
    if not await _commands_are_here():
        return _rest(), {}
    commands, library = CliDriver(), PyslurmDriver()
    why = f"Slurm did not answer within {PROBE_SECONDS:g} s"
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                why = await why_unfit(library, commands)
    finally:
        if why:
            await library.close()
    return (commands, {library.name: why}) if why else (library, {})


async def slurm_is_here() -> bool:
    """Whether this machine is configured for a Slurm cluster. Slurm's commands with a configuration file, or an
    address of slurmrestd, are enough, even if the cluster is down. A machine that gets its configuration from slurmctld
    is recognized only while slurmctld answers."""
    return await _commands_are_here() or URL_VARIABLE in os.environ


async def _commands_are_here() -> bool:
    if shutil.which("sbatch") is None:
        return False
    if "SLURM_CONF" in os.environ or await asyncio.to_thread(os.path.exists, "/etc/slurm/slurm.conf"):
        return True
    try:  # a machine without a configuration file may get its configuration from slurmctld
        async with asyncio.timeout(PROBE_SECONDS):
            await CliDriver().list_jobs()
    except (SlurmUnreachable, TimeoutError):
        return False
    return True
