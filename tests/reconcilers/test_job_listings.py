"""One look at Slurm for everybody: what it tells, and what it makes of no answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollyard.core.clock import SystemClock
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.reconcilers.job_listings import ListingFeed
from rollyard.slurm.base import Partition, Site
from rollyard.slurm.batch_script import batch_script
from rollyard.slurm.local_driver import LocalDriver
from tests.support.reconciler_site import Line
from tests.support.until import until


class Told:
    """A running feed over a line that can be cut, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.line = Line(LocalDriver(folder / "slurm"))
        self.told: list[set[str]] = []
        self.feed = ListingFeed(self.line, SystemClock(), known_jobs=list)
        self.feed.jobs_changed.connect(self.told.append)

    async def submit(self, comment: str) -> str:
        script = batch_script(
            AllocationTemplate(),
            name="rollyard-x",
            comment=comment,
            log_path=str(self.folder / "log"),
            directory=str(self.folder),
            command=["true"],
        )
        (id,) = await self.line.submit(script)
        return id

    async def until_known(self, known: bool) -> None:
        await until(lambda: (self.feed.latest is not None) is known)

    async def until_ended(self, id: str) -> None:
        await until(lambda: (now := self.feed.latest) and (job := now.jobs.get(id)) and job.state.ended)

    async def more_looks(self, count: int) -> None:
        before = self.feed.count
        await until(lambda: self.feed.count >= before + count)


@pytest.fixture
async def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    monkeypatch.setattr("rollyard.reconcilers.job_listings.INTERVAL_SECONDS", 0.05)
    told = Told(tmp_path)
    run = asyncio.create_task(told.feed.run())
    yield told
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run


async def test_a_job_that_changes_is_told_by_its_comment(told: Told) -> None:
    await told.until_known(True)
    assert told.told == [set()], "the first look tells everybody"
    await told.until_ended(await told.submit("ours"))
    assert told.told[1:]
    assert all(comments == {"ours"} for comments in told.told[1:])
    seen = len(told.told)
    await told.more_looks(2)
    assert len(told.told) == seen, "nothing changed, nothing is told"


async def test_slurm_going_and_coming_back_is_told_to_everybody(told: Told) -> None:
    await told.until_ended(await told.submit("ours"))
    told.line.down = True
    await told.until_known(False)
    assert told.feed.unreachable_since is not None
    told.told.clear()
    told.line.down = False
    await told.until_known(True)
    assert told.told[0] == set(), "even to those whose job has vanished meanwhile"
    assert told.feed.unreachable_since is None


async def test_a_look_up_that_hangs_is_no_answer(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    await told.until_known(True)
    monkeypatch.setattr("rollyard.reconcilers.job_listings.TIMEOUT_SECONDS", 0.1)
    told.line.answers.clear()
    await told.until_known(False)
    assert told.feed.unreachable_since is not None
    told.line.answers.set()
    monkeypatch.setattr("rollyard.reconcilers.job_listings.TIMEOUT_SECONDS", 30.0)
    await told.until_known(True)


async def test_a_look_up_that_is_overdue_is_told_before_it_is_given_up(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told.until_known(True)
    monkeypatch.setattr("rollyard.reconcilers.job_listings.OVERDUE_SECONDS", 0.1)
    told.line.answers.clear()
    await told.until_known(False)
    assert "has not answered the look-up" in told.feed.unreachable_why
    told.line.answers.set()
    await told.until_known(True)  # by that same look-up
    assert told.feed.unreachable_since is None


async def test_a_partition_s_state_is_asked_again_when_a_pool_is_checked(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was up to 60 s old: warnings for a partition that was up again, none for one that was down."""
    await told.until_known(True)
    before = await told.feed.fresh_site()
    assert before is not None
    down = replace(before, partitions={"main": Partition("main", False, frozenset())})

    async def site() -> Site:
        asked.append(1)
        return down

    asked: list[int] = []
    monkeypatch.setattr(told.line, "site", site)
    assert await told.feed.fresh_site() == before, "it is a moment old"
    monkeypatch.setattr("rollyard.reconcilers.job_listings.FRESH_SECONDS", 0.0)
    assert await asyncio.gather(*(told.feed.fresh_site() for _ in range(5))) == [down] * 5
    assert asked == [1], "all share one query"
