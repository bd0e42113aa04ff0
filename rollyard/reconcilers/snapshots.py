"""One Slurm snapshot for everybody; nothing else asks the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rollyard.clock import Clock
from rollyard.errors import SlurmUnreachable
from rollyard.slurm.base import Driver, Job, Snapshot
from rollyard.telemetry import SLURM_CALLS

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 30.0
"""slurmctld being down costs a look-up 9 s; one that takes longer than this is no answer."""
SOON_SECONDS = 0.1


class SnapshotFeed:
    """The latest complete snapshot; None until the first, and while Slurm cannot be read."""

    def __init__(self, driver: Driver, clock: Clock, changed: Callable[[set[str]], None] = lambda _: None) -> None:
        self._driver = driver
        self._clock = clock
        self._soon = asyncio.Event()
        self.latest: Snapshot | None = None
        self.count = 0
        """Complete snapshots so far: lets a reader tell two of them apart."""
        self.unreachable_since: float | None = None
        """Unix seconds."""
        self.changed = changed
        """Called with the comments of jobs that changed; with none when Slurm went away or came back."""

    def refresh(self) -> None:
        """Something was submitted or cancelled: look again soon."""
        self._soon.set()

    async def run(self) -> None:
        while True:
            await self._take()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._soon.wait()
                await asyncio.sleep(SOON_SECONDS)
            self._soon.clear()

    async def _take(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                snapshot = await self._driver.snapshot()
        except (SlurmUnreachable, TimeoutError) as error:
            SLURM_CALLS.labels("snapshot", "unreachable").inc()
            if self.unreachable_since is None:
                log.warning("Slurm cannot be read: %s", str(error) or f"no answer in {TIMEOUT_SECONDS:g} s")
                self.unreachable_since = self._clock.time()
                self.latest = None
                self.changed(set())
            return
        SLURM_CALLS.labels("snapshot", "ok").inc()
        before: dict[str, Job] = dict(self.latest.jobs) if self.latest else {}
        was_unknown = self.latest is None
        self.latest, self.unreachable_since = snapshot, None
        self.count += 1
        moved = {j.comment for id, j in snapshot.jobs.items() if before.get(id) != j}
        moved |= {j.comment for id, j in before.items() if id not in snapshot.jobs}
        if moved or was_unknown:
            self.changed(set() if was_unknown else moved)  # what vanished meanwhile is in neither
