"""One budget for all calls to Slurm: a token bucket, and a breaker that stops calls while slurmctld is slow or down.

Frequent retries would increase the load of an overloaded controller, so calls are spread over time. After one call that
slurmctld does not answer, only the listing of jobs is tried again, at growing intervals, until it succeeds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from rollyard.core.errors import SlurmUnreachable, SubmitRefused
from rollyard.core.telemetry import SLURM_CALLS, SLURM_SECONDS
from rollyard.slurm.base import BatchScript, Driver, Job, JobAccount, JobListing, Site

T = TypeVar("T")
CALLS_PER_SECOND, BURST = 10.0, 20
SLOW_CALL_SECONDS = 5.0
TO_SLURMDBD = ("accounting", "accounts")
"""Calls that go to slurmdbd. If one fails, slurmctld may still work."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class BudgetedDriver:
    """Driver whose calls go through the budget. While the breaker is open, all calls except `list_jobs` raise
    SlurmUnreachable immediately."""

    def __init__(self, driver: Driver, *, calls_per_second: float = CALLS_PER_SECOND, burst: int = BURST) -> None:
        self.name = driver.name
        self._driver = driver
        self._rate, self._burst = calls_per_second, float(burst)
        self._tokens, self._filled_at = self._burst, time.monotonic()
        self._failures = 0
        self._paused_until = 0.0
        """Monotonic time, in seconds, at which the present pause ends. Until then `list_jobs` waits, and other calls are
        refused."""
        self._why = ""

    async def list_jobs(self) -> JobListing:
        """List the jobs. While the breaker is open, this call first waits for the end of the pause."""
        if (pause := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        return await self._call("list_jobs", lambda: self._driver.list_jobs())

    async def submit(self, script: BatchScript) -> list[str]:
        self._check()
        return await self._call("submit", lambda: self._driver.submit(script))

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        self._check()
        await self._call("cancel", lambda: self._driver.cancel(ids, signal))

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        self._check()
        return await self._call("accounting", lambda: self._driver.accounting(ids))

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        """Ask slurmdbd, whether slurmctld answers or not. A slow answer stops no other call."""
        return await self._call("accounts", lambda: self._driver.accounts(ids))

    async def site(self) -> Site:
        self._check()
        return await self._call("site", lambda: self._driver.site())

    async def close(self) -> None:
        await self._driver.close()

    def _check(self) -> None:
        """Raise SlurmUnreachable while the breaker is open. A call refused here certainly did not reach Slurm."""
        if self._failures:
            raise SlurmUnreachable(
                f"Slurm does not answer ({self._why}); Rollyard makes no other calls until a look-up succeeds"
            )
        if (pause := self._paused_until - time.monotonic()) > 0:
            raise SlurmUnreachable(f"Slurm is slow ({self._why}); Rollyard makes no calls for {pause:.0f} s")

    async def _call(self, word: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._take_token()
        began = time.monotonic()
        try:
            answer = await call()
        except SlurmUnreachable as error:
            SLURM_CALLS.labels(word, "unreachable").inc()
            if word not in TO_SLURMDBD:
                self._failed(str(error))
            raise
        except SubmitRefused:
            SLURM_CALLS.labels(word, "refused").inc()
            raise
        finally:
            seconds = time.monotonic() - began
            SLURM_SECONDS.labels(word).observe(seconds)
        SLURM_CALLS.labels(word, "ok").inc()
        if word == "list_jobs":
            self._failures = 0
        if seconds > SLOW_CALL_SECONDS and word != "accounts":
            self._why = f"{word} took {seconds:.0f} s"
            self._paused_until = time.monotonic() + min(MAX_PAUSE_SECONDS, 2 * seconds)
        return answer

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._why = why
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10))
        self._paused_until = time.monotonic() + pause * random.uniform(0.5, 1.0)

    async def _take_token(self) -> None:
        """Take one token at once, even if the number of tokens falls below zero. Then wait until the number would be
        zero again. So calls run in order of arrival."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate) - 1.0
        self._filled_at = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)
