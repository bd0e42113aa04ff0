"""Hours of jobs beside those of Slurm's accounting. Accounting may be slow, silent or absent, and is asked for at most one
comparison at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollyard.core.clock import Clock
from rollyard.core.errors import SlurmUnreachable, Unavailable
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.usage import JobTime, SlurmUsageView, job_times
from rollyard.slurm.base import Driver, JobAccount
from rollyard.slurm.usage_comparison import compare, without_slurm
from rollyard.store.store import Store

ANSWER_SECONDS = 40.0
"""Longest time for all questions of one comparison to accounting, and for a comparison's wait for the one before it."""
KEPT_SECONDS = 30.0
"""Time for which the same request gets the same answer, also one without hours of Slurm's."""
MOST_KEPT, MOST_KEPT_JOBS = 8, 1000
"""Answers that are kept, and the longest list of jobs in one of them."""


class SlurmUsage:
    def __init__(self, store: Store, driver: Driver, clock: Clock) -> None:
        self._store, self._driver, self._clock = store, driver, clock
        self._one = asyncio.Lock()
        self._kept: dict[tuple[str | None, float, int], SlurmUsageView] = {}

    async def compare(self, namespace: str | None, since: float, limit: int) -> SlurmUsageView:
        """Compare the hours of jobs since a time (Unix seconds). `namespace`: None for all. `limit`: most jobs to list.

        If accounting cannot be read, the answer says why. Raises Unavailable if earlier comparisons take too long.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._one.acquire()
        except TimeoutError:
            raise Unavailable(
                "Slurm's accounting is slow, and earlier comparisons wait for it", retry_after=int(KEPT_SECONDS)
            ) from None
        try:
            now, key = self._clock.time(), (namespace, since, limit)
            self._kept = {k: view for k, view in self._kept.items() if 0 <= now - view.until < KEPT_SECONDS}
            if key not in self._kept:
                view = await self._compare(namespace, since, limit, now)
                if limit > MOST_KEPT_JOBS or len(self._kept) >= MOST_KEPT:
                    return view
                self._kept[key] = view
            return self._kept[key]
        finally:
            self._one.release()

    async def _compare(self, namespace: str | None, since: float, limit: int, now: float) -> SlurmUsageView:
        objects, _ = await self._store.objects.list_objects(Allocation.__name__, namespace)
        live = [one for one in objects if isinstance(one, Allocation)]
        # Only now, so that no job that ends in between is missed.
        ended = await self._store.ended_allocations.since(since, namespace)
        jobs = await asyncio.to_thread(lambda: list(job_times(ended, live, now)))
        accounts = await self._ask(jobs)
        if isinstance(accounts, str):
            return await asyncio.to_thread(without_slurm, jobs, since, now, accounts)
        return await asyncio.to_thread(compare, jobs, accounts, since, now, limit)

    async def _ask(self, jobs: Sequence[JobTime]) -> Mapping[str, Sequence[JobAccount]] | str:
        """Return what accounting has of jobs, or why that is not known."""
        if self._driver.name == "local":
            return "there is no Slurm here: the server runs the jobs on its own machine, so there is nothing to compare with"
        ids = sorted({job.id for job in jobs if job.id})
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await self._driver.accounts(ids)
        except SlurmUnreachable as error:
            return f"Slurm's accounting cannot be read: {error}"
        except TimeoutError:
            return (
                f"Slurm's accounting did not tell of {len(ids)} jobs within {ANSWER_SECONDS:.0f} s; "
                "ask for a shorter time, or for one namespace"
            )
        if found is None:
            unserved = ", or slurmrestd does not serve them" if self._driver.name == "slurmrestd" else ""
            return f"Slurm keeps no accounts here{unserved}, so there is nothing to compare with"
        return found
