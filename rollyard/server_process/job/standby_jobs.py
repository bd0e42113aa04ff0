"""Keeps standby jobs queued behind the server's job. The first one starts when the server's job ends for any reason.

There are two standby jobs, because a standby job that starts on a broken node ends without submitting another one.
Slurm starts standby jobs in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rollyard.core.clock import Clock
from rollyard.core.errors import SlurmUnreachable, SubmitRefused
from rollyard.kinds.values.job_state import JobState
from rollyard.server_process.job.job_folder import ServerJobFolder
from rollyard.slurm.base import Driver, JobListing

log = logging.getLogger(__name__)

STANDBY_JOBS = 2
POLL_SECONDS = 1.0
RETRY_AFTER_REFUSAL_SECONDS = 60.0


class StandbyKeeper:
    """Submits missing standby jobs. `latest`: returns the shared listing of the queue; None while Slurm cannot be read."""

    def __init__(
        self, place: ServerJobFolder, driver: Driver, latest: Callable[[], JobListing | None], clock: Clock
    ) -> None:
        self._folder, self._driver, self._latest, self._clock = place, driver, latest, clock
        self._asked_at = float("-inf")

    async def run(self) -> None:
        while True:
            pause = POLL_SECONDS
            try:
                await self.submit_missing()
            except SlurmUnreachable as error:
                log.warning("some of the %d standby jobs are not queued yet: %s", STANDBY_JOBS, error)
            except SubmitRefused as error:
                log.error(
                    "some of the %d standby jobs cannot be queued; without one this server ends with its job: %s",
                    STANDBY_JOBS, error,
                )  # fmt: skip
                pause = RETRY_AFTER_REFUSAL_SECONDS
            await asyncio.sleep(pause)

    async def submit_missing(self) -> None:
        """Submit the missing standby jobs. Raises SlurmUnreachable, SubmitRefused."""
        listing = self._latest()
        # A listing that began before the last submit may lack the submitted job. The time is noted before the submit
        # too, because a job may exist although the submit's answer was lost.
        if listing is None or listing.taken_at <= self._asked_at:
            return
        waiting = sum(job.state is JobState.PENDING for job in self._folder.live_jobs(listing))
        for _ in range(STANDBY_JOBS - waiting):
            script = await asyncio.to_thread(self._folder.desired_script)
            if script is None:
                return
            self._asked_at = self._clock.time()
            ids = await self._driver.submit(script)
            self._asked_at = self._clock.time()
            log.info("standby job %s is queued", ids[0])
