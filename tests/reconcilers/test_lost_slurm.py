"""Unknown is not empty: what is done while Slurm gives no answer, a late one, or an old one."""

from __future__ import annotations

import asyncio

from reconciler_site import Site

from rollyard.slurm.local import LocalDriver


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


async def test_a_job_that_was_forgotten_while_slurm_was_away_is_missed_at_once(site: Site) -> None:
    await site.apply(replicas=2)
    first, second = await site.running(2)
    assert first.status.job_id is not None
    site.line.down = True

    async def away() -> bool:
        reachable = await site.condition("SlurmReachable")
        return reachable is not None and reachable.status == "False"

    await site.until(away)
    await site.end(first.status.job_id)
    site.line.driver = LocalDriver(site.folder / "slurm", kill_wait=1.0, min_job_age=0.0)
    site.line.down = False

    async def replaced() -> bool:
        states = {a.spec.index: a.status.job_state for a in await site.allocations()}
        return states == {0: "GONE", 1: "RUNNING", 2: "RUNNING"}

    await site.until(replaced)
    assert second.status.job_id in {j.id for j in await site.live()}


async def test_a_submit_whose_answer_is_lost_is_adopted_and_not_repeated(site: Site) -> None:
    site.line.lose_answers = 1
    await site.apply(replicas=2)
    allocations = await site.running(2)
    assert site.line.submits == 1, "two jobs, one array"
    assert [a.status.intents for a in allocations] == [1, 1]


async def test_a_look_up_begun_before_a_submit_answered_does_not_declare_its_job_gone(site: Site) -> None:
    """Several such look-ups can be under way when squeue is slow; none of them knows the job."""
    site.line.stale = await site.line.driver.snapshot()
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
