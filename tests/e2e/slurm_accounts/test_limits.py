"""Preemption and limits, which take slurmdbd: rollouts are handed back and go on, and what is in the way has a name."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.kinds.base import ObjectKey
from tests.support.slurm_field import Field

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(120)]


async def test_what_a_higher_qos_preempts_hands_back_and_comes_again(field: Field) -> None:
    old = await field.running()
    assert old.status.job_id is not None
    failures = (await field.pool()).status.failures
    # All of the nodes that ours may use: whatever runs there has to go.
    boss = await asyncio.to_thread(
        field.cluster.submit, "sleep 100000", "--qos=high", "--nodes=3", "--exclusive", "--exclude=n4"
    )
    ended = await field.ended(old, "PREEMPTED", "CANCELLED")
    assert ended.status.job_state == "PREEMPTED"

    async def told() -> bool:
        return "WaitingForSlurm" in await field.condition("Ready", "False")

    await field.yard.until(told)
    await field.shown_is_true()
    await field.slurm("scancel", boss)
    await field.all_is_well()
    assert (await field.pool()).status.failures <= failures, "a preemption is nobody's failure"

    found = await field.client.slurm_usage(limit=10_000)
    (job,) = [job for job in found.jobs if job.id == old.status.job_id]
    assert job.slurm_cpu_hours is not None
    assert job.slurm_cpu_hours > 0
    assert (job.cpu_hours == pytest.approx(job.slurm_cpu_hours)) == (not job.why)


async def test_a_limit_of_a_qos_is_named_and_waited_for(field: Field) -> None:
    await field.become(demo={"allocation": {"qos": "one"}, "replicas": 1})
    await field.client.scale(ObjectKey(kind="RolloutPool", namespace="default", name="demo"), 2)

    async def told() -> bool:
        words = "1 of 2 jobs pending: QOSMaxJobsPerUserLimit (the QOS allows a user no more running jobs)"
        return words in await field.condition("Ready", "False")

    await field.yard.until(told)
    await field.shown_is_true()
    await field.slurm("sacctmgr", "-i", "modify", "qos", "one", "set", "MaxJobsPerUser=-1")
    await field.yard.ready(field.client)
    await field.all_is_well()


async def test_an_account_or_a_qos_that_is_refused_ends_nothing_that_runs(field: Field) -> None:
    for wrong, words in (({"account": "nobody-pays"}, "Invalid account"), ({"qos": "none-such"}, "Invalid qos")):
        before = {j.id for j in await field.yard.jobs()}
        await field.apply(demo={"allocation": wrong})

        async def told(words: str = words) -> bool:
            return any(words in message for message in await field.said("SubmitRefused"))

        await field.yard.until(told)
        assert before <= {j.id for j in await field.yard.jobs()}
        await field.apply(demo={"allocation": {"account": None, "qos": None}})
        await field.all_is_well()


async def test_more_jobs_than_may_be_submitted_come_as_they_may(field: Field) -> None:
    await field.slurm("sacctmgr", "-i", "modify", "user", "where", "account=rl", "set", "MaxSubmitJobs=5")
    key = ObjectKey(kind="RolloutPool", namespace="default", name="demo")

    async def told() -> bool:
        events, _ = await field.client.list_objects("Event")
        return any("MaxSubmitJob" in getattr(e, "message", "") for e in events)

    async def as_many_as_may_be() -> bool:
        return len(await field.yard.jobs()) == 5  # a stranger's among them

    try:
        await field.client.scale(key, 4)
        await field.yard.until(told)
        await field.yard.until(as_many_as_may_be)
    finally:  # the next tests need more jobs
        await field.slurm("sacctmgr", "-i", "modify", "user", "where", "account=rl", "set", "MaxSubmitJobs=-1")
    await field.yard.ready(field.client)
    await field.all_is_well(jobs=5)
