"""Search for orphans: jobs of this server that have no Allocation.

An Allocation is stored before its job is submitted, and Allocations are read after the listing of the queue. So the
Allocation of a job that was just submitted is always found.
"""

from __future__ import annotations

import asyncio
import logging

from rollyard.core.errors import RollyardError
from rollyard.kinds.allocation import Allocation
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.slurm.base import Driver
from rollyard.store.object_store import ObjectStore

log = logging.getLogger(__name__)

SWEEP_SECONDS = 10.0


class OrphanSweep:
    """Cancels orphans. A job of another user, or of another server, is never touched."""

    def __init__(self, store: ObjectStore, driver: Driver, feed: ListingFeed, workspace: AllocationFolders) -> None:
        self._store = store
        self._driver = driver
        self._feed = feed
        self._workspace = workspace

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except RollyardError as error:
                log.warning("skipped the search for orphaned jobs this time: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> list[str]:
        """Cancel orphans and return their ids."""
        listing = self._feed.latest
        if listing is None:
            return []
        found, _ = await self._store.list_objects("Allocation")
        known = {self._workspace.owner(a) for a in found if isinstance(a, Allocation)}
        orphans = [
            job.id
            for job in listing.jobs.values()
            if not job.state.ended and self._workspace.is_ours(job) and job.owner not in known
        ]
        if orphans:
            log.warning("ending jobs of this server that have no allocation: %s", ", ".join(orphans))
            await self._driver.cancel(orphans)
            self._feed.refresh()
        return orphans
