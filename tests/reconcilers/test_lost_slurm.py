"""Unknown is not empty: what is done while Slurm gives no answer, a late one, or an old one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import evolve, get_condition
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Job
from rollyard.slurm.local_driver import LocalDriver
from tests.support.reconciler_site import Site

pytestmark = pytest.mark.slow(25)


async def test_while_slurm_cannot_be_read_nothing_is_made_or_ended(site: Site) -> None:
    await site.apply(replicas=1)
    await site.running(1)
    site.line.down = True

    async def told() -> bool:
        reachable = await site.condition("SlurmReachable")
        return reachable is not None and reachable.status == "False" and "since 20" in reachable.message

    await site.until(told)
    for replicas in (3, 0):
        await site.change(replicas=replicas)

        async def wanted(replicas: int = replicas) -> bool:
            return (await site.pool()).status.replicas.desired == replicas

        await site.until(wanted)
        (allocation,) = await site.allocations()
        assert (allocation.spec.drain, allocation.metadata.deletion_timestamp) == (False, None)
        assert allocation.status.job_state == "RUNNING", "the last that was known"
    await site.change(replicas=2)
    site.line.down = False
    await site.running(2)

    async def back() -> bool:
        reachable = await site.condition("SlurmReachable")
        return reachable is not None and reachable.status == "True"

    await site.until(back)


async def forget(site: Site, allocation: Allocation, **status: datetime) -> Job:
    """Its job as it was, ended and purged while Slurm cannot be read; `status` is what was last seen of it."""
    site.line.down = True

    async def away() -> bool:
        reachable = await site.condition("SlurmReachable")
        return reachable is not None and reachable.status == "False"

    await site.until(away)
    assert allocation.status.job_id is not None
    job = (await site.line.driver.list_jobs()).jobs[allocation.status.job_id]
    await site.end(job.id)
    known = await site.store.objects.get(allocation.key)
    assert isinstance(known, Allocation)
    await site.store.objects.update(evolve(known, status=evolve(known.status, **status)), "status")
    site.line.driver = LocalDriver(site.folder / "slurm", kill_wait=1.0, min_job_age=0.0)
    site.line.down = False
    return job


async def test_a_job_that_was_forgotten_while_slurm_was_away_is_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.reconcilers.missing_jobs.ABSENT_SECONDS", 0.5)
    monkeypatch.setattr("rollyard.reconcilers.failure_backoff.LAUNCH_SECONDS", 0.5)
    await site.apply(replicas=2)
    first, second = await site.running(2)
    assert first.status.job_id is not None
    await forget(site, first)

    async def replaced() -> bool:
        states = {a.spec.index: a.status.job_state for a in await site.allocations()}
        return states == {0: "GONE", 1: "RUNNING", 2: "RUNNING"}

    await site.until(replaced)
    assert second.status.job_id in {j.id for j in await site.live()}


async def test_an_end_is_not_concluded_while_accounting_does_not_answer(site: Site) -> None:
    await site.apply(replicas=2)
    first, _ = await site.running(2)
    site.line.accounted = None
    job = await forget(site, first)

    async def asked() -> bool:
        return site.line.asked > 2

    await site.until(asked)
    assert [a.status.job_state for a in await site.allocations()] == ["RUNNING", "RUNNING"], "the last that was known"
    ended = int(job.start_time or 0) + 1
    site.line.accounted = {job.id: replace(job, state=JobState.COMPLETED, end_time=float(ended))}

    async def told() -> bool:
        found = (await site.allocations())[0].status
        return (found.job_state, found.end_time) == ("COMPLETED", datetime.fromtimestamp(ended, UTC))

    await site.until(told)
    await site.running(2, newest=2)


async def test_an_end_that_accounting_never_tells_is_concluded_and_no_later_than_its_walltime(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.reconcilers.missing_jobs.DISPUTE_SECONDS", 0.5)
    await site.apply(replicas=1)
    (first,) = await site.running(1)
    site.line.accounted, end = None, first.status.start_time
    assert end is not None
    await forget(site, first, end_time=end)

    async def concluded() -> bool:
        status = (await site.allocations())[0].status
        return (status.job_state, status.end_time) == ("GONE", end)

    await site.until(concluded)
    (event,) = await site.events("AccountingSilent")
    assert "accounting does not answer" in event.message
    assert "Connection refused" in event.message
    await site.running(1, newest=1)


@pytest.mark.usefixtures("one_array")
async def test_a_submit_whose_answer_is_lost_is_adopted_and_not_repeated(site: Site) -> None:
    site.line.lose_answers = 1
    await site.apply(replicas=2)
    allocations = await site.running(2)
    assert site.line.submits == 1, "two jobs, one array"
    assert [a.status.intents for a in allocations] == [1, 1]


@pytest.mark.usefixtures("one_array")
async def test_ids_that_come_with_an_error_are_kept_and_the_error_is_told(site: Site) -> None:
    site.line.complaint = "sbatch ended with exit code 1: no X11"
    await site.apply(replicas=2)
    await site.running(2)
    assert site.line.submits == 1
    said = {e.message for e in await site.events("SubmitComplained")}
    assert said == {
        f"job 1_{task} was submitted, with a complaint: sbatch ended with exit code 1: no X11" for task in (0, 1)
    }


async def test_a_submit_that_is_not_answered_is_told_while_it_lasts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.reconcilers.job_submitter.OVERDUE_SECONDS", 0.1)
    site.line.submitted.clear()
    await site.apply(replicas=1)

    async def told(status: str, words: str) -> bool:
        found = [get_condition(a.status.conditions, "Submitted") for a in await site.allocations()]
        return [c is not None and c.status == status and words in c.message for c in found] == [True]

    await site.until(lambda: told("False", "sbatch has not answered since 20"))
    site.line.submitted.set()
    await site.until(lambda: told("True", "as job 1"))
    await site.running(1)
    assert site.line.submits == 1


async def test_a_look_up_begun_before_a_submit_answered_does_not_declare_its_job_gone(site: Site) -> None:
    """Several such look-ups can be under way when squeue is slow; none of them knows the job."""
    site.line.stale = await site.line.driver.list_jobs()
    await site.apply(replicas=1)

    async def recorded() -> bool:
        return [a.status.job_id for a in await site.allocations()] == ["1"]

    await site.until(recorded)
    (allocation,) = await site.allocations()
    for _ in range(20):
        site.manager.add(allocation.key)
        await asyncio.sleep(0.05)  # several look-ups
    site.line.stale = None
    (running,) = await site.running(1)
    assert running.metadata.uid == allocation.metadata.uid
    assert site.line.submits == 1


async def test_a_restart_adopts_what_runs(site: Site) -> None:
    await site.apply(replicas=2)
    before = {(a.metadata.uid, a.status.job_id) for a in await site.running(2)}
    started = {(j.id, j.start_time) for j in await site.live()}
    await site.restart()
    await site.change(replicas=3)
    after = {(a.metadata.uid, a.status.job_id) for a in await site.running(3)}
    assert before < after
    assert started < {(j.id, j.start_time) for j in await site.live()}
