"""One listing of our jobs for all readers in the server. No other part of the server queries the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from rollyard.core.aio import Signal, wait_or_timeout
from rollyard.core.clock import Clock, as_text
from rollyard.core.errors import SlurmUnreachable
from rollyard.reconcilers.missing_jobs import (
    Absence,
    AbsenceVerdict,
    KnownJob,
    absences,
    contradicted_ends,
    is_incomplete,
    judge_absence,
    why_doubted,
)
from rollyard.reconcilers.slurm_clock import clock_lead, job_on_our_clock, on_our_clock
from rollyard.slurm.base import Driver, Job, JobListing, Site

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
REST_RATIO = 4.0
"""Pause after a slow query, as a multiple of the query's duration."""
SITE_SECONDS = 60.0
FRESH_SECONDS, SITE_WAIT_SECONDS = 5.0, 5.0
"""Greatest age of the partitions' state for a check of a pool, and the wait for a newer one."""
TIMEOUT_SECONDS = 120.0
"""Time limit of a query. A query includes all attempts of the driver, and the waits for the driver's call budget."""
SOON_POLL_SECONDS = 0.1
OVERDUE_SECONDS, OVERDUE_RATIO = 5.0, 3.0
"""A query is overdue if it takes longer than these seconds, and longer than this multiple of the duration of the last
answered query. While a query is overdue, Slurm's state counts as unknown."""
ACCOUNTING_SECONDS = 10.0
"""Seconds between two queries to accounting about the same missing jobs."""
ACCOUNTING_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """Whether Slurm's queue is known at one moment."""

    is_known: bool
    unreachable_since: float | None = None
    """Unix seconds of the first failure; None after a success."""
    why: str = ""
    is_doubted: bool = False
    """True: the last query gave an answer that is not believed."""
    clock_lead: float = 0.0
    """Seconds by which Slurm's clock is ahead of ours, if they differ much."""


class ListingFeed:
    """Feed of listings. `latest` is the newest believed listing; None before the first one, while Slurm is
    unreachable, and when two answers in a row are not believed."""

    def __init__(self, driver: Driver, clock: Clock, known_jobs: Callable[[], Collection[KnownJob]]) -> None:
        """`known_jobs`: returns the jobs that squeue should show."""
        self._driver = driver
        self._clock = clock
        self._soon = asyncio.Event()
        self._last_seconds = 0.0
        """Seconds that the last answered query took."""
        self._known_jobs = known_jobs
        self.missing: dict[str, Absence] = {}
        """Job id -> absence, for known jobs that the last answer omitted, or showed as pending although they had run."""
        self.latest: JobListing | None = None
        self.count = 0
        """Number of believed listings so far. A higher number shows a reader that the listing is new."""
        self.unreachable_since: float | None = None
        """Unix seconds of the first failure; None after a success."""
        self.unreachable_why = ""
        self.is_doubted = False
        """True: the last query gave an answer that is not believed."""
        self.site: Site | None = None
        """Partitions and nodes, read about once a minute while Slurm answers; None until they have been read."""
        self._site_read = -math.inf
        """Monotonic time at which the reading of `site` began."""
        self._reading_site: asyncio.Task[None] | None = None
        self.clock_lead = 0.0
        """Seconds by which Slurm's clock is ahead of ours; 0.0 if the clocks agree, or if it is unknown. All times in
        `latest` are by our clock."""
        self.jobs_changed = Signal[set[str]]()
        """Signal with the owners of changed jobs. An empty set stands for all owners: Slurm became reachable or
        unreachable, or the reason for being unreachable changed."""

    @property
    def access(self) -> QueueAccess:
        return QueueAccess(
            self.latest is not None, self.unreachable_since, self.unreachable_why, self.is_doubted, self.clock_lead
        )

    def refresh(self) -> None:
        """Poll again soon, because jobs have changed or accounting has answered."""
        self._soon.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            tasks.create_task(self._poll_site())
            tasks.create_task(self._ask_accounting())

    def believed_gone(self, id: str) -> bool:
        """Whether this job is missing, and is believed to be gone."""
        absence = self.missing.get(id)
        return absence is not None and judge_absence(absence, self._clock.time()) is AbsenceVerdict.BELIEVED

    @property
    def incomplete(self) -> bool:
        """Whether the latest listing may lack jobs that exist."""
        return is_incomplete(self.missing.values(), self._clock.time())

    async def _poll(self) -> None:
        while True:
            rest = REST_RATIO * await self._poll_queue()
            if await wait_or_timeout(self._soon, max(INTERVAL_SECONDS, rest)):
                await asyncio.sleep(max(SOON_POLL_SECONDS, rest))
            self._soon.clear()

    async def fresh_site(self) -> Site | None:
        """Return partitions and nodes that are at most FRESH_SECONDS old; older ones if Slurm does not answer within
        SITE_WAIT_SECONDS. All callers share one query."""
        if self._clock.monotonic() - self._site_read > FRESH_SECONDS:
            if self._reading_site is None or self._reading_site.done():
                self._reading_site = asyncio.create_task(self._read_site())
            await asyncio.wait({self._reading_site}, timeout=SITE_WAIT_SECONDS)
        return self.site

    async def _read_site(self) -> None:
        began = self._clock.monotonic()
        with contextlib.suppress(SlurmUnreachable, TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                self.site = await self._driver.site()
                self._site_read = began

    async def _poll_site(self) -> None:
        while True:
            await self._read_site()
            await asyncio.sleep(SITE_SECONDS if self.site is not None else INTERVAL_SECONDS)

    async def _poll_queue(self) -> float:
        """Query the queue; return how many seconds the query took. After a failure return 0, because the call budget
        delays the next query."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                listing = await self._request_listing()
        except (SlurmUnreachable, TimeoutError) as error:
            self.is_doubted = False
            self._set_unreachable(str(error) or f"no answer in {TIMEOUT_SECONDS:g} s")
            return 0.0
        seconds = max(0.0, self._clock.time() - listing.taken_at)
        self._last_seconds = seconds
        if why := self._why_doubted(listing):
            if self.is_doubted:
                self._set_unreachable(why)
            else:  # a slurmctld that has just started may give one wrong answer, so query again soon
                self.is_doubted = True
                self._soon.set()
            return seconds
        self.is_doubted = False
        before: dict[str, Job] = dict(self.latest.jobs) if self.latest else {}
        was_unknown = self.latest is None
        listing = self._without_contradicted_ends(listing, before)
        self.latest, self.unreachable_since = listing, None
        self.count += 1
        changed = {j.owner for id, j in listing.jobs.items() if before.get(id) != j}
        changed |= {j.owner for id, j in before.items() if id not in listing.jobs}
        if changed or was_unknown:
            self.jobs_changed.emit(set() if was_unknown else changed)  # an empty set: all may have changed
        return seconds

    def _without_contradicted_ends(self, listing: JobListing, before: Mapping[str, Job]) -> JobListing:
        """Put each job whose end is not believed yet back to its last believed state, or leave it out if there is none."""
        ids = contradicted_ends(self.missing.values(), self._clock.time())
        if not ids:
            return listing
        kept = {id: before[id] for id in ids if id in before}
        return replace(listing, jobs={id: j for id, j in listing.jobs.items() if id not in ids} | kept)

    async def _request_listing(self) -> JobListing:
        """Return the driver's answer. While a slow answer is awaited, Slurm's state counts as unknown."""
        began, call = self._clock.time(), asyncio.create_task(self._driver.list_jobs())
        try:
            await asyncio.wait({call}, timeout=max(OVERDUE_SECONDS, OVERDUE_RATIO * self._last_seconds))
            if not call.done() and self.unreachable_since is None:
                self._set_unreachable(f"Slurm has not answered the look-up of {as_text(began)} yet")
            listing = await call
        finally:
            call.cancel()
        lead = clock_lead(self._known_jobs(), listing)
        if abs(lead - self.clock_lead) > 1.0:
            log.warning("Slurm's clock is %.0f s ahead of this machine's; its times are corrected", lead)
        self.clock_lead = lead
        return on_our_clock(listing, lead)

    def _why_doubted(self, listing: JobListing) -> str:
        """Update `missing`. Return the reason why the whole listing is not believed; empty if the listing is believed."""
        known, now = self._known_jobs(), self._clock.time()
        self.missing = absences(self.missing, known, listing)
        return why_doubted(known, self.missing, now)

    async def _ask_accounting(self) -> None:
        """Query accounting about missing jobs, for ever. One call asks about all jobs that are due."""
        while True:
            await asyncio.sleep(ACCOUNTING_POLL_SECONDS)
            now = self._clock.time()
            due = [id for id, a in self.missing.items() if a.asked_at is None or now - a.asked_at >= ACCOUNTING_SECONDS]
            if not due:
                continue
            accounts, silence = {}, ""
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    accounts = dict(await self._driver.accounting(due))
            except (SlurmUnreachable, TimeoutError) as error:
                silence = str(error) or f"no answer in {TIMEOUT_SECONDS:g} s"
            at = self._clock.time()
            for id in due:
                if (absence := self.missing.get(id)) is not None:
                    account = accounts.get(id)
                    account = job_on_our_clock(account, self.clock_lead) if account is not None else None
                    self.missing[id] = absence.with_accounting(at, account, silence)
            self.refresh()

    def _set_unreachable(self, why: str) -> None:
        before, self.unreachable_why = self.unreachable_why, why
        if self.unreachable_since is not None:
            if before != why:
                self.jobs_changed.emit(set())
        else:
            log.warning("Slurm's queue cannot be read: %s", why)
            self.unreachable_since = self._clock.time()
            self.latest = None
            self.jobs_changed.emit(set())
