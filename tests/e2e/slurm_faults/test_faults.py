"""Faults of a cluster. After each of them every rollout ends once, live jobs equal desired, strangers are untouched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey
from tests.support.slurm_field import Field
from tests.support.standstill import freeze
from tests.support.yard import alive

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(300)]

DEMO = ObjectKey(kind="RolloutPool", namespace="default", name="demo")


# slurmctld


async def test_a_controller_that_hangs_changes_nothing(field: Field, long_run: bool) -> None:
    before = {j.id for j in await field.yard.jobs()}
    await asyncio.to_thread(field.cluster.freeze)
    assert "until it can be read, nothing is created or ended" in await field.condition("SlurmReachable", "False")
    await field.shown_as_away()
    await field.client.scale(DEMO, 3)
    await asyncio.sleep(30 if long_run else 1)  # the stated duration; work goes on without Slurm
    await asyncio.to_thread(field.cluster.thaw)
    await field.condition("SlurmReachable", "True")
    await field.all_is_well(jobs=4)
    assert before <= {j.id for j in await field.yard.jobs()}, "no job was given up"


async def test_a_controller_that_dies_and_comes_back_changes_nothing(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs()}
    await asyncio.to_thread(field.cluster.settle)
    await asyncio.to_thread(field.cluster.stop_daemon, "slurmctld")
    await field.condition("SlurmReachable", "False")
    await field.shown_as_away()
    _, said = await field.yard.rollyard("describe", "allocation", (await field.allocations())[0].metadata.name)
    assert said.startswith("Warning: Slurm's queue is unknown since ")
    await asyncio.to_thread(field.cluster.start_daemon, "slurmctld")
    await field.condition("SlurmReachable", "True")
    assert (await field.yard.rollyard("get", "allocations"))[1] == ""
    await field.all_is_well()
    assert before == {j.id for j in await field.yard.jobs()}


async def test_a_queue_that_answers_wrongly_changes_nothing(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs()}

    async def happened() -> bool:
        return field.shims.done("squeue")

    for what, times in (("silence", 1), ("header", 1), ("failure", 3), ("late", 1), ("garbage", 2)):
        field.shims.order("squeue", what, times)
        await field.yard.until(happened, 90)
        await field.condition("SlurmReachable", "True")
        assert before == {j.id for j in await field.yard.jobs()}, what
    await field.all_is_well()
    assert before == {j.id for j in await field.yard.jobs()}


async def test_a_submit_whose_answer_is_lost_is_not_repeated(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs(live=False)}
    field.shims.order("sbatch", "lost")
    await field.client.scale(DEMO, 4)
    await field.all_is_well(jobs=5)
    assert field.shims.done("sbatch")
    new = {j.id for j in await field.yard.jobs(live=False)} - before
    assert len(new) == 2, "one array of two: nothing went out twice"


# nodes


async def test_the_copy_on_a_lost_node_cannot_commit(field: Field) -> None:
    old = await field.running()
    (pid,) = field.yard.processes("node-agent", f"{old.metadata.name} ")  # and not demo-rp-12 for demo-rp-1
    await field.lose(old.status.node)
    await field.ended(old, "NODE_FAIL", seconds=180)

    async def gone() -> bool:
        return not alive(pid)

    await field.yard.until(gone)  # told to exit, though no slurmd is there to end it
    await field.shown_is_true()
    await field.regain(old.status.node)
    await field.all_is_well()


async def test_a_node_agent_that_is_cut_off_is_not_shown_as_ready(field: Field) -> None:
    """Its job runs and its process lives, and nothing comes from it, as when the network of its node is cut."""
    old = await field.running()
    (pid,) = field.yard.processes("node-agent", f"{old.metadata.name} ")
    await asyncio.to_thread(freeze, pid)
    try:
        if field.page is not None:
            await field.page.says(old.metadata.name, "not ready")
        await field.condition("Ready", "False")
        await field.shown_is_true()
    finally:
        os.kill(pid, signal.SIGCONT)
    await field.all_is_well()


@pytest.mark.parametrize("state", ["drain", pytest.param("down", marks=pytest.mark.long)])
async def test_a_node_that_an_administrator_takes_away_stays_away(field: Field, state: str) -> None:
    old = await field.running("InferencePool")
    node = old.status.node
    await field.slurm("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=maintenance")
    if state == "down":
        await field.ended(old, "NODE_FAIL", "CANCELLED")
    await field.all_is_well()

    async def shown() -> bool:  # sinfo shows "mixed" while it counts the processors of jobs that have ended
        return state in (await field.slurm("sinfo", "-h", "-n", node, "-o", "%T")).lower()

    await field.yard.until(shown)
    await field.shown_is_true()
    if state == "down":
        assert node not in {j.node for j in await field.yard.jobs()}
    await field.slurm("scontrol", "update", f"NodeName={node}", "State=resume")


@pytest.mark.long  # of the tests alone
async def test_the_next_test_finds_nothing_of_one_that_failed_midway(field: Field) -> None:
    old = await field.running()
    await field.slurm("scontrol", "suspend", str((await field.running("InferencePool")).status.job_id))
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=full")
    await field.lose(old.status.node)
    field.shims.order("squeue", "failure", 100_000)
    await asyncio.to_thread(field.cluster.freeze)
    await field.restore()
    states = {state.rstrip("*") for state in (await field.slurm("sinfo", "-h", "-o", "%T")).split()}
    assert states <= {"idle", "mixed", "allocated"}
    await field.all_is_well()


# people and policies


async def test_a_restart_replaces_each_job_of_a_pool_and_loses_no_rollout(field: Field) -> None:
    old = {a.metadata.name: a.status.job_id for a in await field.allocations()}
    servers = {a.status.job_id for a in await field.allocations("InferencePool")}
    await field.submit("moves")
    out, _ = await field.yard.rollyard("restart", "rp/demo", "--wait", "--timeout", "240", seconds=300)
    assert out == "rolloutpool/demo restarted\nrolloutpool/demo is up to date\n"
    live = [a for a in await field.allocations() if not a.status.is_ended and not a.spec.drain]
    assert len(live) == 2
    assert not {a.metadata.name for a in live} & old.keys()
    await field.all_is_well()
    assert not {j.id for j in await field.yard.jobs()} & {*old.values()}
    assert {a.status.job_id for a in await field.allocations("InferencePool")} >= servers, "the other pool is untouched"
    assert (await field.yard.rollyard("history", "rp/demo"))[0].splitlines()[-1].split()[-4] == "restartedAt:"


@pytest.mark.long  # slurm_accounts/test_deaths.py has this and the next one, on a cluster with accounts
async def test_a_job_that_a_person_cancels_is_replaced_and_said_to_be(field: Field) -> None:
    old = await field.running()
    assert old.status.job_id is not None
    await field.slurm("scancel", old.status.job_id)
    await field.ended(old, "CANCELLED")
    await field.all_is_well()
    assert any(f"job {old.status.job_id} ended" in m and "CANCELLED" in m for m in await field.said("JobEnded"))


@pytest.mark.long
async def test_a_job_that_is_requeued_is_replaced(field: Field) -> None:
    old = await field.running()
    assert old.status.job_id is not None
    await field.slurm("scontrol", "update", f"JobId={old.status.job_id}", "Requeue=1")
    await field.slurm("scontrol", "requeue", old.status.job_id)
    await field.requeued(old)
    await field.all_is_well()


async def test_a_job_that_is_held_stays_held_and_says_so(field: Field) -> None:
    old = {a.metadata.name for a in await field.allocations()}  # a busy server may still show one of these as pending
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=full")
    await field.client.scale(DEMO, 3)

    async def pending() -> Allocation | None:
        new = (a for a in await field.allocations() if a.metadata.name not in old)
        return next((a for a in new if a.status.job_state == "PENDING"), None)

    waits = await field.yard.until(pending)
    assert waits.status.job_id is not None
    await field.slurm("scontrol", "hold", waits.status.job_id)
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=resume")

    async def told() -> bool:
        return "JobHeldAdmin (an administrator holds it; Rollyard leaves it held)" in await field.condition(
            "Ready", "False"
        )

    await field.yard.until(told)
    await field.all_is_well(jobs=4)
    assert "PENDING" in {a.status.job_state for a in await field.allocations()}
    await field.slurm("scontrol", "release", waits.status.job_id)
    await field.yard.ready(field.client)


async def test_a_walltime_that_is_cut_short_ends_a_job_and_no_rollout(field: Field) -> None:
    await field.become(demo={"renewal": {"beforeExpirySeconds": 0}})
    old = await field.running()
    assert old.status.job_id is not None
    await field.slurm("scontrol", "update", f"JobId={old.status.job_id}", "TimeLimit=1")

    async def over() -> bool:
        now = {a.metadata.name: a for a in await field.yard.allocations(field.client)}
        found = now.get(old.metadata.name)
        return found is None or found.status.is_ended

    await field.yard.until(over, 150)
    await field.shown_is_true()
    await field.all_is_well()


async def test_what_slurm_refuses_is_said_in_its_words(field: Field) -> None:
    for wrong, message in (
        ({"gpusPerNode": 64}, "the largest node of partition main has 4 GPUs"),
        ({"gres": "gpu:64"}, "the largest node of partition main has 4 GPUs"),
        ({"partition": "nowhere"}, "there is no partition nowhere; write one of low, main"),
    ):
        with pytest.raises(Invalid, match=message):
            await field.apply(demo={"allocation": wrong})
    await field.apply(demo={"allocation": {"gres": "shard:64"}})  # of what nothing is known Slurm has to judge

    async def told() -> bool:
        events, _ = await field.client.list_objects("Event")
        return any("Invalid generic resource (gres) specification" in getattr(e, "message", "") for e in events)

    await field.yard.until(told)

    async def named() -> bool:
        conditions = getattr(await field.client.get(DEMO), "status").conditions  # noqa: B009
        return any("(`allocation` has gres: shard:64)" in one.message for one in conditions)

    await field.yard.until(named)
    await field.yard.gather(field.client, field.ids)  # the old ones stay until there are new ones
    await field.apply()
    await field.all_is_well()


@pytest.mark.parametrize(  # test_crashes.py has every point, with jobs that are processes
    "point",
    [
        pytest.param("after-intent", marks=pytest.mark.long),
        "after-submit",
        pytest.param("after-record", marks=pytest.mark.long),
        pytest.param("after-cancel", marks=pytest.mark.long),
    ],
)
async def test_a_server_killed_between_two_lines_makes_no_second_job(field: Field, point: str) -> None:
    field.yard.stop()
    field.yard.start(crash_at=point)
    await field.connect()
    with contextlib.suppress(Exception):
        if point == "after-cancel":  # of what has to be cancelled: a drained agent may leave by itself before that
            await field.client.delete((await field.running()).key)
        else:
            await field.client.scale(DEMO, 3)
    assert field.yard.server is not None
    await asyncio.to_thread(field.yard.server.wait, 120)
    await field.shown_as_not_connected(time.time())
    field.yard.stop()
    field.yard.start()
    await field.connect()
    await field.client.scale(DEMO, 3)
    await field.all_is_well(jobs=4)
    names = [j.owner for j in await field.yard.jobs()]
    assert len(names) == len(set(names))


async def test_a_record_that_slurm_has_purged_is_missed(field: Field) -> None:
    """The last one, because ended jobs are purged from here on."""
    old = await field.running()
    assert old.status.job_id is not None
    field.yard.stop()
    await field.shown_as_not_connected(time.time())
    await asyncio.to_thread(field.cluster.configure, "MinJobAge=2")
    await field.slurm("scancel", old.status.job_id)

    async def purged() -> bool:
        return old.status.job_id not in (await field.slurm("squeue", "-h", "-r", "-t", "all", "-o", "%i")).split()

    await field.yard.until(purged, 90)
    field.yard.start()
    await field.connect()

    async def missed() -> bool:  # the pool keeps few ended allocations, so the event is looked for
        ended = [m for m in await field.said("JobEnded") if f"job {old.status.job_id} ended" in m]
        return any("Slurm no longer knows it, and its end is not known" in m for m in ended)

    await field.yard.until(missed)
    await field.all_is_well()
