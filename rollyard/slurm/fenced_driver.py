"""Driver that checks before each change of a job whether a newer server has replaced this server.

A server may not know yet that it has been replaced. Such a server must not end jobs of the newer server. Slurm
has no fencing tokens, so a gap remains between the check and the call. If both servers submit a job for one allocation
in this gap, only the job whose process registers first counts (`Allocation.status.binding`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from rollyard.core.errors import SlurmUnreachable, Unavailable
from rollyard.slurm.base import BatchScript, Driver, Job, JobAccount, JobListing, Site


class FencedDriver:
    """Driver that awaits `confirm` before each submit and cancel.

    If `confirm` raises Unavailable, Slurm is not called, and SlurmUnreachable is raised.
    """

    def __init__(self, driver: Driver, confirm: Callable[[], Awaitable[None]]) -> None:
        self.name = driver.name
        self._driver = driver
        self._confirm = confirm

    async def list_jobs(self) -> JobListing:
        return await self._driver.list_jobs()

    async def submit(self, script: BatchScript) -> list[str]:
        await self._check()
        return await self._driver.submit(script)

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        await self._check()
        await self._driver.cancel(ids, signal)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        return await self._driver.accounting(ids)

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        return await self._driver.accounts(ids)

    async def site(self) -> Site:
        return await self._driver.site()

    async def close(self) -> None:
        await self._driver.close()

    async def _check(self) -> None:
        try:
            await self._confirm()
        except Unavailable as error:
            raise SlurmUnreachable(f"Slurm was not asked: {error}") from None
