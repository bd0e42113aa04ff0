"""How jobs of this machine ended, as their allocations tell it."""

from __future__ import annotations

import json
import os
import signal

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import get_condition
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutFilter, RolloutRecord
from tests.support.reconciler_site import Site


async def ended(site: Site, allocation: Allocation) -> str:
    """Waits for its end; the short sentence, which the long one begins with."""
    found: list[Allocation] = []

    async def over() -> bool:
        found[:] = [a for a in await site.allocations() if a.metadata.uid == allocation.metadata.uid]
        return found[0].status.is_ended

    await site.until(over)
    condition = get_condition(found[0].status.conditions, "Ready")
    assert condition is not None
    assert found[0].status.reason.partition(";")[0] in condition.message
    return found[0].status.reason


async def losses(site: Site) -> int:
    """Wait until the pool's rollout is queued again; return how many losses of a lease count against it."""

    async def queued() -> list[RolloutRecord]:
        return await site.rollouts.find(RolloutFilter(namespace="default", pool="swe", status=(Status.QUEUED,)))

    (record,) = await site.until(queued)
    return int(record.losses)


def leader(site: Site, allocation: Allocation) -> int:
    job = site.folder / "slurm" / "jobs" / str(allocation.status.job_id)
    return int(json.loads((job / "run.json").read_text())["pid"])


async def test_a_job_that_somebody_kills_is_told_by_its_signal_and_not_by_its_log(site: Site) -> None:
    await site.apply(replicas=1)
    (first,) = await site.running(1)
    await site.lease(await site.connect(first))
    log = site.workspace.log_file("default", first.metadata.name)
    with log.open("a") as file:
        file.write("a line about something else\n")
    os.utime(log, (site.now() - 1_860, site.now() - 1_860))
    os.kill(leader(site, first), signal.SIGKILL)
    assert await ended(site, first) == "killed by signal 9 (KILL), sender unknown"
    assert await losses(site) == 1, "the rollout may be the cause"

    async def told() -> bool:
        return bool(await site.events("JobEnded"))

    await site.until(told)  # the status is written first
    (event,) = await site.events("JobEnded")
    assert (event.type, "something else" in event.message) == ("Warning", False)
    await site.delete("RolloutPool", "swe")

    async def gone() -> bool:
        return not await site.allocations()

    await site.until(gone)
    kept = {one.name: one for one in await site.store.ended_allocations.since(0.0)}
    old = kept[first.metadata.name]
    assert (old.job_id, old.job_state, old.reason) == (
        first.status.job_id,
        "FAILED",
        "killed by signal 9 (KILL), sender unknown",
    )
    assert old.started_at is not None
    assert first.status.intended_at is not None
    assert first.status.intended_at.timestamp() - 1 <= old.started_at <= old.ended_at <= old.seen_at <= site.now()


async def test_a_job_that_was_cancelled_behind_our_back_is_told_so(site: Site) -> None:
    await site.apply(replicas=1)
    (first,) = await site.running(1)
    await site.lease(await site.connect(first))
    await site.end(str(first.status.job_id))
    assert await ended(site, first) == "cancelled, not by Rollyard; by whom is unknown"
    assert await losses(site) == 0


async def test_a_job_that_we_end_is_told_with_our_reason(site: Site) -> None:
    for change, why in ((dict(replicas=0), "its pool needs fewer"), (dict(suspend=True), "its pool is suspended")):
        name = f"swe-{why.split()[-1]}"
        await site.apply(replicas=1, name=name)
        (allocation,) = await site.running(1)
        agent = await site.connect(allocation)
        await site.lease(agent)
        await site.change(name, **change)

        async def draining(why: str = why) -> bool:
            conditions = [get_condition(a.status.conditions, "Draining") for a in await site.allocations()]
            return any(c is not None and why in c.message for c in conditions)

        await site.until(draining)
        await site.finish(agent)
        site.node_agents.disconnect(agent)

        async def told(name: str = name, why: str = why) -> bool:
            said = [e for e in await site.events("JobEnded") if e.involved_object.name.startswith(name)]
            return [why in e.message and e.type == "Normal" for e in said] == [True]

        await site.until(told)
