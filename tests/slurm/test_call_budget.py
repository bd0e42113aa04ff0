"""The budget that all calls to Slurm pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.base import BatchScript, Job, JobAccount, JobListing, Site
from rollyard.slurm.call_budget import BudgetedDriver

SCRIPT = BatchScript("rollyard-x", "c", "#!/bin/bash\n", "/")


class Answers:
    """A driver that answers as it is told."""

    name = "told"

    def __init__(self) -> None:
        self.down = False
        self.calls: list[str] = []

    def _say(self, word: str) -> None:
        self.calls.append(word)
        if self.down:
            raise SlurmUnreachable("Unable to contact slurm controller")

    async def list_jobs(self) -> JobListing:
        self._say("list_jobs")
        return JobListing(0.0, {})

    async def submit(self, script: BatchScript) -> list[str]:
        self._say("submit")
        return ["1"]

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        self._say("cancel")

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        self._say("accounting")
        return {}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        self._say("accounts")
        return None

    async def site(self) -> Site:
        self._say("site")
        return Site("1", {}, {})

    async def close(self) -> None:
        pass


async def test_after_one_failure_nothing_but_the_look_up_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.slurm.call_budget.FIRST_PAUSE_SECONDS", 0.01)
    slurm = Answers()
    driver = BudgetedDriver(slurm)
    slurm.down = True
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        await driver.submit(SCRIPT)
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="Rollyard makes no other calls until a look-up succeeds"):
            await driver.submit(SCRIPT)
        with pytest.raises(SlurmUnreachable, match="makes no other calls"):
            await driver.cancel(["1"])
    assert slurm.calls == ["submit"]
    slurm.down = False
    await driver.list_jobs()
    await driver.submit(SCRIPT)
    assert slurm.calls == ["submit", "list_jobs", "submit"]


async def test_accounting_that_is_down_keeps_nobody_from_submitting() -> None:
    slurm = Answers()
    driver = BudgetedDriver(slurm)
    slurm.down = True
    with pytest.raises(SlurmUnreachable):
        await driver.accounting(["1"])
    slurm.down = False
    await driver.submit(SCRIPT)


async def test_the_bucket_spreads_calls_out_and_loses_none() -> None:
    driver = BudgetedDriver(Answers(), calls_per_second=200.0, burst=5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(driver.submit(SCRIPT) for _ in range(25)))
    assert loop.time() - began >= 0.095, "5 at once, 20 more at 200 a second"
