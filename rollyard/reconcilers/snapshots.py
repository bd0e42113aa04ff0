"""One Slurm snapshot for everybody; nothing else asks the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rollyard.clock import Clock
from rollyard.errors import SlurmUnreachable
from rollyard.slurm.base import Driver, Job, Site, Snapshot

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
REST_RATIO = 4.0
"""A look-up that took long is followed by a rest so many times as long."""
SITE_SECONDS = 60.0
TIMEOUT_SECONDS = 120.0
"""The driver has shorter limits of its own, and its budget waits between attempts."""
SOON_SECONDS = 0.1


class SnapshotFeed:
    """The latest complete snapshot; None until the first, and while Slurm cannot be read."""

    def __init__(self, driver: Driver, clock: Clock, changed: Callable[[set[str]], None] = lambda _: None) -> None:
        self._driver = driver
        self._clock = clock
        self._soon = asyncio.Event()
        self._doubted = False
        self.latest: Snapshot | None = None
        self.count = 0
        """Complete snapshots so far: lets a reader tell two of them apart."""
        self.unreachable_since: float | None = None
        """Unix seconds."""
        self.unreachable_why = ""
        self.site: Site | None = None
        """Partitions and nodes, at most about a minute old; None until they were read."""
        self.changed = changed
        """Called with the owners of jobs that changed; with none when Slurm went away or came back."""

    def refresh(self) -> None:
        """Something was submitted or cancelled: look again soon."""
        self._soon.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            tasks.create_task(self._look_around())

    async def _look(self) -> None:
        while True:
            taken = await self._take()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(max(INTERVAL_SECONDS, REST_RATIO * taken)):
                    await self._soon.wait()
                await asyncio.sleep(max(SOON_SECONDS, REST_RATIO * taken))
            self._soon.clear()

    async def _look_around(self) -> None:
        while True:
            with contextlib.suppress(SlurmUnreachable, TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    self.site = await self._driver.site()
            await asyncio.sleep(SITE_SECONDS if self.site is not None else INTERVAL_SECONDS)

    async def _take(self) -> float:
        """Seconds that Slurm took to answer; 0 when it did not, for then the call budget spaces the next ones out."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                snapshot = await self._driver.snapshot()
        except (SlurmUnreachable, TimeoutError) as error:
            self._lost(str(error) or f"no answer in {TIMEOUT_SECONDS:g} s")
            return 0.0
        taken = max(0.0, self._clock.time() - snapshot.taken_at)
        if self._doubtful(snapshot):
            log.warning("Slurm says that none of our jobs is there any more; it is asked again before that is believed")
            self._soon.set()
            return taken
        before: dict[str, Job] = dict(self.latest.jobs) if self.latest else {}
        was_unknown = self.latest is None
        self.latest, self.unreachable_since = snapshot, None
        self.count += 1
        moved = {j.owner for id, j in snapshot.jobs.items() if before.get(id) != j}
        moved |= {j.owner for id, j in before.items() if id not in snapshot.jobs}
        if moved or was_unknown:
            self.changed(set() if was_unknown else moved)  # what vanished meanwhile is in neither
        return taken

    def _lost(self, why: str) -> None:
        self.unreachable_why = why
        if self.unreachable_since is None:
            log.warning("Slurm cannot be read: %s", why)
            self.unreachable_since = self._clock.time()
            self.latest = None
            self.changed(set())

    def _doubtful(self, snapshot: Snapshot) -> bool:
        """An empty queue where several jobs lived a moment ago; once, for a controller that has just started says so too."""
        lived = self.latest is not None and any(not j.state.ended for j in self.latest.jobs.values())
        self._doubted = lived and not snapshot.jobs and not self._doubted
        return self._doubted
