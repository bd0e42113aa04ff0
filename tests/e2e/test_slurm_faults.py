"""Faults of a cluster. After each of them every rollout ends once, live jobs equal desired, strangers are untouched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.core.errors import Invalid
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey
from tests.support.cluster import NewCluster, start_cluster, stop_cluster
from tests.support.slurm_field import Field, field_on
from tests.support.yard import alive

pytestmark = pytest.mark.slow(250)

DEMO = ObjectKey(kind="RolloutPool", namespace="default", name="demo")
CONF = ("SlurmdTimeout=5", "KillWait=2", "MessageTimeout=5", "ReturnToService=1")


@pytest.fixture
async def field(new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(new_cluster(conf=CONF), tmp_path_factory) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def begun(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    cluster = start_cluster(conf=CONF)
    try:
        async with field_on(cluster, tmp_path_factory) as found:
            await found.begin()
            yield found
    finally:
        stop_cluster(cluster)


@pytest_asyncio.fixture(loop_scope="module")
async def calm(begun: Field) -> Field:
    """Shared by the tests that leave all as it was; rollouts are under way."""
    await begun.client.scale(DEMO, 2)
    await begun.settled()
    await begun.yard.ready(begun.client)
    await begun.submit(f"before-{len(begun.ids)}", 4)
    return begun


# slurmctld


@pytest.mark.asyncio(loop_scope="module")
async def test_a_controller_that_hangs_changes_nothing(calm: Field, long_run: bool) -> None:
    before = {j.id for j in await calm.yard.jobs()}
    await asyncio.to_thread(calm.cluster.freeze)
    assert "until it can be read, nothing is created or ended" in await calm.condition("SlurmReachable", "False")
    await calm.client.scale(DEMO, 3)
    await asyncio.sleep(30 if long_run else 1)  # the stated duration; work goes on without Slurm
    await asyncio.to_thread(calm.cluster.thaw)
    await calm.condition("SlurmReachable", "True")
    await calm.all_is_well(jobs=5)
    assert before <= {j.id for j in await calm.yard.jobs()}, "no job was given up"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_controller_that_dies_and_comes_back_changes_nothing(calm: Field) -> None:
    before = {j.id for j in await calm.yard.jobs()}
    await asyncio.to_thread(calm.cluster.settle)
    await asyncio.to_thread(calm.cluster.stop_daemon, "slurmctld")
    await calm.condition("SlurmReachable", "False")
    await asyncio.to_thread(calm.cluster.start_daemon, "slurmctld")
    await calm.condition("SlurmReachable", "True")
    await calm.all_is_well()
    assert before == {j.id for j in await calm.yard.jobs()}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("what", "times"), [("silence", 1), ("header", 1), ("failure", 5), ("late", 1), ("garbage", 2)]
)
async def test_a_queue_that_answers_wrongly_changes_nothing(calm: Field, what: str, times: int) -> None:
    before = {j.id for j in await calm.yard.jobs()}
    calm.shims.order("squeue", what, times)

    async def happened() -> bool:
        return calm.shims.done("squeue")

    await calm.yard.until(happened, 90)
    await calm.condition("SlurmReachable", "True")
    await calm.all_is_well()
    assert before == {j.id for j in await calm.yard.jobs()}


async def test_a_submit_whose_answer_is_lost_is_not_repeated(field: Field) -> None:
    field.shims.order("sbatch", "lost", 2)
    await field.begin()
    assert field.shims.done("sbatch")
    await field.all_is_well()
    rows = await field.slurm("squeue", "-h", "-r", "-t", "all", "-o", "%i")
    assert len(rows.splitlines()) == 5, "two arrays of two and the stranger's: nothing went out twice"


# nodes


@pytest.mark.asyncio(loop_scope="module")
async def test_the_copy_on_a_lost_node_cannot_commit(calm: Field) -> None:
    old = await calm.running()
    (pid,) = calm.yard.processes("node-agent", old.metadata.name)
    await asyncio.to_thread(calm.cluster.stop_daemon, f"slurmd-{old.status.node}")
    await calm.ended(old, "NODE_FAIL", seconds=180)

    async def gone() -> bool:
        return not alive(pid)

    await calm.yard.until(gone)  # told to exit, though no slurmd is there to end it
    await asyncio.to_thread(calm.cluster.start_daemon, f"slurmd-{old.status.node}")
    await calm.all_is_well()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("state", ["drain", "down"])
async def test_a_node_that_an_administrator_takes_away_stays_away(calm: Field, state: str) -> None:
    old = await calm.running("InferencePool")
    node = old.status.node
    await calm.slurm("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=maintenance")
    if state == "down":
        await calm.ended(old, "NODE_FAIL", "CANCELLED")
    await calm.all_is_well()

    async def shown() -> bool:  # sinfo shows "mixed" while it counts the processors of jobs that have ended
        return state in (await calm.slurm("sinfo", "-h", "-n", node, "-o", "%T")).lower()

    await calm.yard.until(shown)
    if state == "down":
        assert node not in {j.node for j in await calm.yard.jobs()}
    await calm.slurm("scontrol", "update", f"NodeName={node}", "State=resume")


# people and policies


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_that_a_person_cancels_is_replaced_and_said_to_be(calm: Field) -> None:
    old = await calm.running()
    assert old.status.job_id is not None
    await calm.slurm("scancel", old.status.job_id)
    await calm.ended(old, "CANCELLED")
    await calm.all_is_well()
    assert any(f"job {old.status.job_id} ended" in m and "CANCELLED" in m for m in await calm.said("JobEnded"))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_that_is_requeued_is_replaced(calm: Field) -> None:
    old = await calm.running()
    assert old.status.job_id is not None
    await calm.slurm("scontrol", "update", f"JobId={old.status.job_id}", "Requeue=1")
    await calm.slurm("scontrol", "requeue", old.status.job_id)
    await calm.requeued(old)
    await calm.all_is_well()


async def test_a_job_that_is_held_stays_held_and_says_so(field: Field) -> None:
    await field.begin(demo={"allocation": {"cpusPerTask": 3}})
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=full")
    await field.client.scale(DEMO, 3)

    async def pending() -> Allocation | None:
        return next((a for a in await field.allocations() if a.status.job_state == "PENDING"), None)

    waits = await field.yard.until(pending)
    assert waits.status.job_id is not None
    await field.slurm("scontrol", "hold", waits.status.job_id)
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=resume")

    async def told() -> bool:
        return "JobHeldAdmin (an administrator holds it; Rollyard leaves it held)" in await field.condition(
            "Ready", "False"
        )

    await field.yard.until(told)
    await field.all_is_well(jobs=5)
    assert "PENDING" in {a.status.job_state for a in await field.allocations()}
    await field.slurm("scontrol", "release", waits.status.job_id)
    await field.yard.ready(field.client)


async def test_a_walltime_that_is_cut_short_ends_a_job_and_no_rollout(field: Field) -> None:
    await field.begin(demo={"renewal": {"beforeExpirySeconds": 0}})
    old = await field.running()
    assert old.status.job_id is not None
    await field.slurm("scontrol", "update", f"JobId={old.status.job_id}", "TimeLimit=1")

    async def over() -> bool:
        now = {a.metadata.name: a for a in await field.yard.allocations(field.client)}
        found = now.get(old.metadata.name)
        return found is None or found.status.is_ended

    await field.yard.until(over, 150)
    await field.all_is_well()


async def test_a_record_that_slurm_has_purged_is_missed(
    new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with field_on(new_cluster(conf=("MinJobAge=2", "KillWait=2")), tmp_path_factory) as field:
        await field.begin()
        old = await field.running()
        assert old.status.job_id is not None
        field.yard.stop()
        await field.slurm("scancel", old.status.job_id)

        async def purged() -> bool:
            return old.status.job_id not in (await field.slurm("squeue", "-h", "-r", "-t", "all", "-o", "%i")).split()

        await field.yard.until(purged, 90)
        field.yard.start()
        await field.connect()
        await field.ended(old, "GONE")
        await field.all_is_well()


@pytest.mark.asyncio(loop_scope="module")
async def test_what_slurm_refuses_is_said_in_its_words(calm: Field) -> None:
    for wrong, message in (
        ({"gpusPerNode": 64}, "the largest node of partition main has 4 GPUs"),
        ({"gres": "gpu:64"}, "the largest node of partition main has 4 GPUs"),
        ({"partition": "nowhere"}, "there is no partition nowhere; write one of low, main"),
    ):
        with pytest.raises(Invalid, match=message):
            await calm.apply(demo={"allocation": wrong})
    await calm.apply(demo={"allocation": {"gres": "shard:64"}})  # of what nothing is known Slurm has to judge

    async def told() -> bool:
        events, _ = await calm.client.list_objects("Event")
        return any("Invalid generic resource (gres) specification" in getattr(e, "message", "") for e in events)

    await calm.yard.until(told)
    await calm.yard.gather(calm.client, calm.ids)  # the old ones stay until there are new ones
    await calm.apply()
    await calm.all_is_well()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(  # test_crashes.py has every point, with jobs that are processes
    "point",
    [
        pytest.param("after-intent", marks=pytest.mark.long),
        "after-submit",
        pytest.param("after-record", marks=pytest.mark.long),
        "after-cancel",
    ],
)
async def test_a_server_killed_between_two_lines_makes_no_second_job(calm: Field, point: str) -> None:
    calm.yard.stop()
    calm.yard.start(crash_at=point)
    await calm.connect()
    with contextlib.suppress(Exception):
        if point == "after-cancel":  # of what has to be cancelled: a drained agent may leave by itself before that
            await calm.client.delete((await calm.running()).key)
        else:
            await calm.client.scale(DEMO, 3)
    assert calm.yard.server is not None
    await asyncio.to_thread(calm.yard.server.wait, 120)
    calm.yard.stop()
    calm.yard.start()
    await calm.connect()
    await calm.client.scale(DEMO, 3)
    await calm.all_is_well(jobs=5)
    names = [j.owner for j in await calm.yard.jobs()]
    assert len(names) == len(set(names))
