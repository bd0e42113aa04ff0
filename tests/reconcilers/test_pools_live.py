"""Declared pools against real jobs: what is declared runs, once, and nothing else does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.base import FINALIZER, evolve
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import StageStatus
from rollyard.reconcilers.conditions import CRASH_LOOP
from rollyard.reconcilers.pool import REFRESH_SECONDS
from rollyard.reconcilers.pool_observation import PoolObservation
from rollyard.reconcilers.rollout_pool import RolloutPoolObserver
from rollyard.slurm.base import BatchScript
from rollyard.slurm.batch_script import batch_script
from tests.support.reconciler_site import Site

pytestmark = pytest.mark.slow(45)

POLICY = {"policy": "policy"}
AT_THE_END = r"(at the end|\d s before the end)"
"""On a busy machine, some time passes from the last line to the end that is recorded."""


@pytest.mark.usefixtures("one_array")
async def test_a_pool_runs_what_it_declares_and_says_so(site: Site) -> None:
    await site.apply_inference()
    await site.apply(replicas=2, inference=POLICY)
    allocations = await site.running(2)
    assert [a.metadata.name for a in allocations] == ["swe-rp-0", "swe-rp-1"]
    assert {j.owner for j in await site.live()} == {site.workspace.owner(a) for a in allocations}
    assert len({j.comment for j in await site.live()}) == 1, "they went out together"
    for allocation in allocations:
        assert allocation.metadata.owner_references[0].uid == (await site.pool()).metadata.uid
        assert FINALIZER in allocation.metadata.finalizers
        assert allocation.status.intents == 1

    async def counted() -> bool:
        return (await site.pool()).status.replicas.observed == 2

    await site.until(counted)
    ready = await site.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.observed_generation) == ("False", "WaitingForAllocations", 1)
    for allocation in allocations:
        await site.connect(allocation)

    async def all_ready() -> bool:
        ready = await site.condition("Ready")
        return ready is not None and (ready.status, ready.reason) == ("True", "AllReady")

    await site.until(all_ready)
    replicas = (await site.pool()).status.replicas
    assert (replicas.desired, replicas.requested, replicas.observed, replicas.ready, replicas.updated) == (2,) * 5
    (scaled,) = await site.events("Scaled")
    assert scaled.message == "from 0 to 2 allocations: spec.replicas is 2"
    assert [d.desired for d in (await site.pool()).status.decisions] == [2]


async def test_a_status_at_rest_is_not_written_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.reconcilers.pool.REFRESH_SECONDS", 0.1)
    await site.apply(replicas=1)
    (allocation,) = await site.running(1)
    await site.connect(allocation)

    async def rest() -> bool:
        before = site.store.objects._feed.version
        await asyncio.sleep(1.0)  # many rounds of refreshing numbers, and of listings
        return site.store.objects._feed.version == before

    await site.until(rest)


async def test_numbers_that_move_all_the_time_are_written_at_their_own_pace(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status write does not wake the next reconcile."""
    await site.apply(replicas=1)
    await site.running(1)
    looks = 0
    look = RolloutPoolObserver.observe

    async def moving(self: RolloutPoolObserver, pool: Pool, allocations: Sequence[Allocation]) -> PoolObservation:
        nonlocal looks
        looks += 1
        found = await look(self, pool, allocations)
        return replace(found, status_update={"stages": {"RUN": StageStatus(queued=looks)}})

    monkeypatch.setattr(RolloutPoolObserver, "observe", moving)
    begun = site.store.objects._feed.version
    start = site.now()
    await site.until(lambda: is_true(looks > 1))  # by itself
    await asyncio.sleep(1.0)
    rounds = 6 + (site.now() - start) / REFRESH_SECONDS
    assert looks < rounds
    assert site.store.objects._feed.version - begun < 2 * rounds


async def is_true(value: bool) -> bool:
    return value


async def test_scaling_down_and_deleting_end_the_jobs_and_leave_nothing(site: Site) -> None:
    await site.apply(replicas=3)
    await site.running(3)
    await site.change(replicas=1)
    await site.running(1)
    await site.change(suspend=True)
    await site.running(0)
    await site.change(suspend=False)
    (new,) = await site.running(1)
    assert new.spec.index == 3, "no index twice"
    await site.delete("RolloutPool", "swe")

    async def gone() -> bool:
        return not (await site.store.objects.list_objects("RolloutPool"))[0] and not await site.allocations()

    await site.until(gone)
    assert not await site.live()
    assert not list((site.folder / "allocations").iterdir())


async def test_an_allocation_deleted_by_hand_is_ended_and_replaced(site: Site) -> None:
    await site.apply(replicas=1)
    (first,) = await site.running(1)
    await site.delete("Allocation", first.metadata.name)

    async def replaced() -> bool:
        names = [a.metadata.name for a in await site.allocations() if a.status.job_state == "RUNNING"]
        return names == ["swe-rp-1"] and len(await site.live()) == 1

    await site.until(replaced)


async def test_a_busy_allocation_is_drained_before_it_ends(site: Site) -> None:
    await site.apply(replicas=2)
    idle, busy = [await site.connect(a) for a in await site.running(2)]
    await site.lease(idle)
    await site.lease(busy)
    await site.finish(idle)
    await site.change(replicas=1)
    (left,) = await site.running(1)
    assert left.metadata.name == busy.identity.allocation, "the idle one goes first"
    await site.change(replicas=0)

    async def alone() -> bool:
        return busy.draining and len(await site.allocations()) == 1

    await site.until(alone)
    (held,) = await site.allocations()
    assert (held.metadata.name, held.spec.drain) == (busy.identity.allocation, True)
    assert len(await site.live()) == 1, "it works on"


async def test_after_a_restart_a_busy_allocation_counts_as_busy_before_it_has_dialled_in(site: Site) -> None:
    await site.apply(replicas=1)
    (allocation,) = await site.running(1)
    await site.lease(await site.connect(allocation))
    await site.stop()
    await site.change(replicas=0)
    await site.restart()

    async def draining() -> bool:
        return all(a.spec.drain for a in await site.allocations())

    await site.until(draining)
    assert [a.status.job_state for a in await site.allocations()] == ["RUNNING"]
    assert len(await site.live()) == 1


async def test_a_new_template_replaces_one_after_another(site: Site) -> None:
    await site.apply(replicas=2)
    for allocation in await site.running(2):
        await site.connect(allocation)
    await site.change(allocation={"setup": "exec sleep 601"})
    for newest, indices in ((2, [0, 1, 2]), (3, [0, 2, 3])):
        running = await site.running(3, newest=newest)
        assert [a.spec.index for a in running] == indices
        await site.connect(running[-1])
    replaced = await site.running(2)
    assert [a.spec.index for a in replaced] == [2, 3]
    assert len({a.spec.template_hash for a in replaced}) == 1


async def test_what_crashes_is_tried_again_more_slowly_and_says_why(site: Site) -> None:
    await site.apply_inference()
    await site.apply(replicas=1, setup="echo 'error: no such model'; exit 7", inference=POLICY)

    async def looping() -> bool:
        ready = await site.condition("Ready")
        return ready is not None and ready.reason == "CrashLoop"

    await site.until(looping)
    ready = await site.condition("Ready")
    assert ready is not None
    assert ready.status == "False"
    said = f"exit code 7; its last output, {AT_THE_END}: error: no such model"
    assert re.search(f"FAILED: {said}", ready.message)
    ended = await site.events("JobEnded")
    assert {e.type for e in ended} == {"Warning"}
    assert any(re.search(said, e.message) for e in ended)
    assert (await site.pool()).status.failures >= CRASH_LOOP
    await site.running(0)  # another try may have begun meanwhile


async def test_jobs_without_an_allocation_are_ended_and_those_of_strangers_are_not(site: Site) -> None:
    def script(name: str, comment: str) -> BatchScript:
        return batch_script(
            AllocationTemplate(),
            name=name,
            comment=comment,
            log_path=str(site.folder / f"{name}.log"),
            directory=str(site.folder),
            command=["sleep", "600"],
        )

    async def submit(script: BatchScript) -> str:
        (id,) = await site.line.driver.submit(script)
        return id

    kept = [
        await submit(script("rollyard-x-0", "rollyard:another:uid-1")),
        await submit(script("rollyard-x-1", "of a person")),
        await submit(script("rollyard-x-2", f"a-rollyard:{site.store.server_id}:uid")),
    ]
    orphan = await submit(script("rollyard-x-3", f"rollyard:{site.store.server_id}:gone"))
    await site.apply(replicas=1)
    await site.restart()

    async def ended() -> bool:
        return orphan not in {j.id for j in await site.live()}

    await site.until(ended)

    async def runs() -> bool:
        return [a.status.job_state for a in await site.allocations()] == ["RUNNING"]

    await site.until(runs)
    (allocation,) = await site.allocations()
    assert {j.id for j in await site.live()} == {*kept, allocation.status.job_id}


async def test_allocations_of_a_pool_that_was_torn_out_go_with_it(site: Site) -> None:
    await site.apply(replicas=1)
    await site.running(1)
    await site.stop()
    pool = await site.pool()
    bare = evolve(pool.metadata, finalizers=[], resource_version="")
    await site.store.objects.update(evolve(pool, metadata=bare), "spec")
    await site.delete("RolloutPool", "swe")
    await site.apply(replicas=0)
    await site.restart()

    async def gone() -> bool:
        return not await site.allocations() and not await site.live()

    await site.until(gone)


async def test_a_pool_without_an_inference_pool_is_not_ready_for_each_of_its_rollouts_would_fail(site: Site) -> None:
    await site.apply(replicas=0)

    async def told() -> bool:
        ready = await site.condition("Ready")
        return ready is not None and (ready.status, ready.reason) == ("False", "NoInference")

    await site.until(told)
    ready = await site.condition("Ready")
    assert ready is not None
    assert "add `inference: {policy: NAME}`" in ready.message


async def test_a_change_that_fails_is_told_at_its_generation_while_the_old_ones_serve_and_cleared_by_the_next(
    site: Site,
) -> None:
    """Ready says what serves, Updated how the change goes; a corrected template does not wait out the other's back-off."""
    await site.apply_inference()
    await site.apply(replicas=1, inference=POLICY)
    (old,) = await site.running(1)
    await site.connect(old)

    async def is_(type: str, status: str, *reasons: str) -> bool:
        generation, fact = (await site.pool()).metadata.generation, await site.condition(type)
        return (
            fact is not None
            and (fact.status, fact.observed_generation) == (status, generation)
            and fact.reason in reasons
        )

    await site.until(lambda: is_("Updated", "True", "Updated"))
    await site.change(allocation={"setup": "echo 'error: share /w is not mounted'; exit 3"})
    await site.until(lambda: is_("Updated", "False", "AllocationFailed", "CrashLoop"))
    assert await is_("Ready", "True", "AllReady")
    replicas = (await site.pool()).status.replicas
    assert (replicas.ready, replicas.updated) == (1, 0)
    fact = await site.condition("Updated")
    assert fact is not None
    assert re.search(f"exit code 3; its last output, {AT_THE_END}: error: share /w is not mounted", fact.message)
    await site.until(lambda: is_("Updated", "False", "CrashLoop"))
    await site.change(allocation={"setup": "exec sleep 601"})
    # the back-off is 4 s by now; what is corrected is made at once, and starts from no failures
    await site.until(lambda: is_("Updated", "False", "Updating"))
    assert (await site.pool()).status.failures == 0

    async def corrected() -> list[Allocation]:
        running = [a for a in await site.allocations() if a.status.job_state == "RUNNING"]
        return [a for a in running if a.spec.template.setup == "exec sleep 601"]

    (newest,) = await site.until(corrected)
    await site.connect(newest)
    await site.until(lambda: is_("Updated", "True", "Updated"))
    assert await is_("Ready", "True", "AllReady")

    async def times(reason: str) -> int:
        return sum(e.count for e in await site.events(reason) if e.involved_object.name == "swe")

    async def one_for_each_change() -> bool:  # an event is written after the status
        reasons = ("Updating", "AllocationFailed", "CrashLoop", "Updated")
        return [await times(reason) for reason in reasons] == [3, 1, 1, 2]

    await site.until(one_for_each_change)


async def test_a_missing_inference_pool_is_told(site: Site) -> None:
    await site.apply(replicas=0, inference={"policy": "qwen"})

    async def told() -> bool:
        ready = await site.condition("Ready")
        return ready is not None and (ready.status, ready.reason) == ("False", "InferencePoolNotFound")

    await site.until(told)


async def test_a_copy_that_turns_up_after_the_end_was_concluded_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was lost comes back with the job still on it: the allocation has been replaced by then."""
    monkeypatch.setattr("rollyard.reconcilers.missing_jobs.ABSENT_SECONDS", 0.5)
    monkeypatch.setattr("rollyard.reconcilers.failure_backoff.LAUNCH_SECONDS", 0.5)
    await site.apply(replicas=1)
    (first,) = await site.running(1)
    seen = await site.line.driver.list_jobs()
    site.line.stale = replace(seen, jobs={})

    async def concluded() -> bool:
        return any(a.status.job_state == "GONE" for a in await site.allocations())

    await site.until(concluded)
    site.line.stale = None
    (second,) = await site.running(1)
    assert second.metadata.name != first.metadata.name
    assert [j.id for j in await site.live()] == [second.status.job_id]


async def test_an_id_that_sbatch_made_up_costs_no_second_job(site: Site) -> None:
    site.line.printed = ["99999"]
    await site.apply(replicas=1)
    (one,) = await site.running(1)
    assert one.status.intents == 1
    assert [j.id for j in await site.live()] == [one.status.job_id]
    assert site.line.submits == 1


async def test_a_submit_that_fails_before_slurm_is_asked_is_not_blamed_on_slurm(site: Site) -> None:
    (site.folder / "allocations").write_text("no folder")
    await site.apply_inference()
    await site.apply(replicas=1, inference=POLICY)

    async def told() -> bool:
        ready = await site.condition("Ready")
        return ready is not None and "Slurm has not been asked" in ready.message

    await site.until(told)
    ready = await site.condition("Ready")
    assert ready is not None
    assert re.search(r"the submit of swe-rp-0 is unfinished: .*Errno 20.*allocations", ready.message)
    assert [e.type for e in await site.events("SubmitFailed")] == ["Warning"]
    assert site.line.submits == 0
    (site.folder / "allocations").unlink()
    await site.running(1)
    assert site.line.submits == 1
