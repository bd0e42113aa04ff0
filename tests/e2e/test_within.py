"""Pools in a job that somebody holds: steps of it, and nothing is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rollyard.kinds.base import ObjectKey
from tests.support.cluster import Cluster
from tests.support.slurm_field import Field, field_on
from tests.support.yard import requests

pytestmark = pytest.mark.slow(40)


@pytest.fixture
async def field(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(cluster, tmp_path_factory) as found:
        yield found
    await asyncio.to_thread(cluster.clear)


async def hold(field: Field, node: str) -> str:
    options = (f"--nodelist={node}", "--cpus-per-task=6", "--mem=0", "--time=30")
    job = await asyncio.to_thread(field.cluster.submit, "sleep 100000", *options)
    await asyncio.to_thread(field.cluster.wait_for_state, job, "RUNNING")
    return job


async def pools(field: Field, job: str) -> None:
    within = {"allocation": {"within": job}, "replicas": 1}
    await field.yard.apply(field.client, policy=within, demo=within)


async def test_pools_run_as_steps_of_a_held_job_and_move_to_the_next(field: Field) -> None:
    first = await hold(field, "n1")
    await pools(field, first)
    await field.yard.ready(field.client)
    allocations = await field.yard.allocations(field.client)
    assert len(allocations) == 2
    assert {a.status.binding.node for a in allocations if a.status.binding is not None} == {"n1"}

    async def ends_known() -> bool:
        return all([a.status.end_time is not None for a in await field.yard.allocations(field.client)])

    await field.yard.until(ends_known)
    assert await field.slurm("squeue", "-h", "-t", "pending,running", "-o", "%i") == first
    steps = (await field.slurm("squeue", "-h", "-s", "-j", first, "-o", "%j")).splitlines()
    assert sum(name.startswith("rollyard-") for name in steps) == 2

    # A server that comes back finds the same steps.
    ids = await field.client.submit(requests(0, 2, prefix="first"))
    field.yard.kill()
    field.yard.start()
    await field.connect()
    assert all(t.status.scored for t in await field.yard.gather(field.client, ids))
    assert {a.status.job_id for a in await field.yard.allocations(field.client)} == {
        a.status.job_id for a in allocations
    }

    # The held job ends, with all that ran in it; the pools say what to do, and go on in the next.
    ids = await field.client.submit(requests(0, 2, prefix="second"))
    await field.slurm("scancel", first)

    async def told() -> bool:
        events, _ = await field.client.list_objects("Event")
        return any(f"job {first} of spec.allocation.within is" in getattr(e, "message", "") for e in events)

    await field.yard.until(told)
    second = await hold(field, "n2")
    await pools(field, second)
    assert all(t.status.scored for t in await field.yard.gather(field.client, ids))
    nodes = {
        a.status.binding.node for a in await field.yard.allocations(field.client) if a.status.binding and a.status.ready
    }
    assert nodes == {"n2"}

    # Deleted pools end their steps, and leave the job to its owner.
    for kind, name in (("RolloutPool", "demo"), ("InferencePool", "policy")):
        await field.client.delete(ObjectKey(kind=kind, namespace="default", name=name))

    async def gone() -> bool:
        steps = await field.slurm("squeue", "-h", "-s", "-j", second, "-o", "%j")
        return "rollyard" not in steps and await field.yard.allocations(field.client) == []

    await field.yard.until(gone)
    assert await asyncio.to_thread(field.cluster.state, second) == "RUNNING"
