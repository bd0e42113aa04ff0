"""Jobs that run as steps of a job which the user already has (`spec.allocation.within`).

A step lives as long as the srun that started it. The local driver runs each srun as a job on the server's machine. So
the srun outlives the server, and a restarted server learns srun's exit code. A server that moves to another machine
does not find the old steps and makes new ones. If a process of an old step connects, the server closes the connection
with `CLOSE_FENCED`, and the process exits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rollyard.core.errors import SubmitRefused
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.values.quantity import walltime_seconds, walltime_text
from rollyard.slurm.base import BatchScript, Driver, Job, JobAccount, JobListing, Site
from rollyard.slurm.batch_script import directive, directives
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.local_driver import LocalDriver

STEP_PREFIX = "step-"
"""Prefix of the id of a step. Slurm's own ids are numbers."""
SRUN_OPTIONS = ("cpus-per-task", "gpus-per-node", "gres")
"""Options of sbatch that are passed to the step's srun. Memory is passed separately."""


class JobStepDriver:
    """Driver that passes ordinary jobs to another driver, and itself runs steps in jobs that users already have."""

    def __init__(self, driver: Driver, cli: CliDriver, folder: Path) -> None:
        """`driver` runs ordinary jobs. `cli` queries the users' jobs. `folder` is for the state of the steps."""
        self.name = driver.name
        self._driver = driver
        self._cli = cli
        self._steps = LocalDriver(folder)

    async def list_jobs(self) -> JobListing:
        listing = await self._driver.list_jobs()
        steps = (
            dataclasses.replace(job, id=STEP_PREFIX + job.id) for job in (await self._steps.list_jobs()).jobs.values()
        )
        return JobListing(listing.taken_at, {**listing.jobs, **{job.id: job for job in steps}})

    async def submit(self, script: BatchScript) -> list[str]:
        if script.within is None:
            return await self._driver.submit(script)
        if shutil.which("srun") is None:
            raise SubmitRefused("the server's machine has no srun, which starts the steps of a job")
        left = _left(script.within, await self._cli.show_job(script.within))
        wrapped = await asyncio.to_thread(_wrapped, script, left)
        return [STEP_PREFIX + id for id in await self._steps.submit(wrapped)]

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        steps = [id.removeprefix(STEP_PREFIX) for id in ids if id.startswith(STEP_PREFIX)]
        jobs = [id for id in ids if not id.startswith(STEP_PREFIX)]
        if steps:
            await self._steps.cancel(steps, signal)
        if jobs:
            await self._driver.cancel(jobs, signal)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        return await self._driver.accounting([id for id in ids if not id.startswith(STEP_PREFIX)])

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        return await self._driver.accounts([id for id in ids if not id.startswith(STEP_PREFIX)])

    async def site(self) -> Site:
        return await self._driver.site()

    async def close(self) -> None:
        await self._driver.close()


def _left(id: str, facts: Mapping[str, str]) -> int:
    """Return the seconds that the user's job has left. Raises SubmitRefused if the job is not running."""
    state = facts.get("JobState", "gone")
    if state != JobState.RUNNING:
        raise SubmitRefused(f"job {id} of spec.allocation.within is {state}; name a running job")
    try:
        end = datetime.fromisoformat(facts["EndTime"]).replace(tzinfo=UTC)  # `CliDriver` requests times in UTC
    except (KeyError, ValueError):
        return 365 * 86_400  # Slurm writes `Unknown` for a job without a limit
    return max(1, int(end.timestamp() - time.time()))


def _wrapped(script: BatchScript, left: int) -> BatchScript:
    """Write the script to a file, and return a job for the local driver. This job starts the script as a step, and
    waits for the step's end. Blocks during the write."""
    assert script.within is not None
    step = Path(script.directory) / "step.sh"
    step.write_text(script.text)
    options = directives(script.text)
    seconds = min(walltime_seconds(options["time"]) or left, left)
    kept = {option: options[option] for option in ("job-name", "comment", "output", "open-mode")}
    # With --mem=0 Slurm counts no memory for the step. Without --mem the first step would take all memory of the job.
    memory = options.get("mem", "0")
    command = ["srun", f"--jobid={script.within}", "--nodes=1", "--ntasks=1", "--exact", f"--mem={memory}"]
    command += [f"--{option}={options[option]}" for option in SRUN_OPTIONS if option in options]
    command += [f"--job-name={script.name}", "--kill-on-bad-exit=1", "--export=ALL"]
    config = os.environ.get("SLURM_CONF")
    lines = [
        "#!/bin/bash",
        *(directive(option, value) for option, value in {**kept, "time": walltime_text(seconds)}.items()),
        # Rollyard knows the step by this id. In the step, Slurm's variables contain the id of the user's job.
        f'export ROLLYARD_JOB={STEP_PREFIX}"$SLURM_JOB_ID"',
        "unset ${!SLURM_*}",
        *([f"export SLURM_CONF={shlex.quote(config)}"] if config is not None else []),
        f"exec {shlex.join([*command, 'bash', str(step)])}",
        "",
    ]
    return dataclasses.replace(script, text="\n".join(lines), within=None)
