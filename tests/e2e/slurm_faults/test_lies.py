"""Slurm's commands answer wrongly and say that all is well. No job is lost by it, none is made, and the pool says it."""

from __future__ import annotations

import time

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from tests.support.slurm_field import JOBS, Field

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(302)]

LIES = 5
LONG_LIES = 40
"""Longer than what nobody contradicts has to last to be believed."""


async def lie(field: Field, what: str, times: int, words: str) -> None:
    """Until the pool's condition says these words, and then for so many look-ups more."""
    field.shims.order("squeue", what, 100_000)

    async def told() -> bool:
        return words in await field.condition("SlurmReachable", "False")

    await field.yard.until(told)
    await field.shown_as_away()
    field.shims.order("squeue", what, times)


async def nothing_has_changed(field: Field, before: set[str], *, jobs: int = JOBS) -> None:
    async def happened() -> bool:
        return field.shims.done("squeue")

    await field.yard.until(happened, 120)
    await field.condition("SlurmReachable", "True")
    await field.all_is_well(jobs=jobs)
    assert {j.id for j in await field.yard.jobs(live=False)} == before, "no job was ended, and none was made"
    assert field.attempts == {1}


async def test_tables_that_heartbeats_contradict_burn_no_job(field: Field, long_run: bool) -> None:
    before = {j.id for j in await field.yard.jobs(live=False)}
    for what, words in (
        ("header", "3 of 3 jobs missing from squeue; heartbeats say they run"),
        ("half", "jobs missing from squeue; heartbeats say they run"),
        ("replay", "3 of 3 jobs missing from squeue; heartbeats say they run"),
        ("over", "3 of 3 jobs shown as ended by squeue; heartbeats say they run"),
        ("rewound", "squeue's answer is older than an earlier one: job"),
    ):
        await lie(field, what, LONG_LIES if long_run else LIES, words)
        await nothing_has_changed(field, before)

    # one alone casts no doubt on the others
    old = await field.running()
    field.shims.order("squeue", "but-one", 100_000, word=f"^{old.status.job_id}~")

    async def told() -> bool:
        found = await field.client.get(old.key)
        assert isinstance(found, Allocation)
        fact = get_condition(found.status.conditions, "InQueue")
        return fact is not None and fact.status == "False" and "heartbeats say it runs" in fact.message

    await field.yard.until(told)
    field.shims.order("squeue", "but-one", LIES, word=f"^{old.status.job_id}~")
    await nothing_has_changed(field, before)
    assert f"job {old.status.job_id} is missing from squeue" in " ".join(await field.said("MissingFromQueue"))


async def test_a_queue_that_hangs_is_told_long_before_it_is_given_up(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs(live=False)}
    calls = field.shims.folder / "squeue.calls"
    field.shims.order("squeue", "hang")

    async def hangs() -> bool:
        return "hang" in calls.read_text()

    await field.yard.until(hangs)
    began = time.monotonic()
    assert "has not answered the look-up" in await field.condition("SlurmReachable", "False")
    assert time.monotonic() - began < 25, "the command is given up after 30 s"
    await nothing_has_changed(field, before)


async def test_ids_that_sbatch_printed_before_it_failed_are_kept_and_one_that_hangs_is_told(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs(live=False)}
    demo = ObjectKey(kind="RolloutPool", namespace="default", name="demo")
    field.shims.order("sbatch", "complaint")
    await field.client.scale(demo, 4)
    await field.all_is_well(jobs=5)
    new = {j.id for j in await field.yard.jobs(live=False)} - before
    assert len(new) == 2, "one array of two: nothing was submitted again"
    assert "sbatch ended with exit code 1: the site's plug-in failed" in " ".join(await field.said("SubmitComplained"))

    field.shims.order("sbatch", "late")
    await field.client.scale(demo, 5)

    async def told() -> bool:
        found = [get_condition(a.status.conditions, "Submitted") for a in await field.allocations()]
        return any(c is not None and "sbatch has not answered since 20" in c.message for c in found)

    await field.yard.until(told)
    await field.all_is_well(jobs=6)
    assert field.attempts == {1}
