"""A rollout says what it waits for while Slurm does, in Slurm's own words."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.kinds.base import ObjectKey
from tests.support.cluster import NewCluster
from tests.support.slurm_field import Field, field_on
from tests.support.yard import requests

pytestmark = pytest.mark.slow(30)


@pytest.fixture
async def field(new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(new_cluster(conf=("MessageTimeout=5",)), tmp_path_factory) as found:
        yield found


async def test_a_rollout_tells_of_a_submit_that_hangs_then_of_its_pending_job_then_of_a_suspended_pool(
    field: Field,
) -> None:
    field.shims.order("sbatch", "late", 2)
    await field.apply(
        policy={"replicas": 1, "allocation": {"extraDirectives": {"begin": "now+1hour"}}}, demo={"replicas": 1}
    )
    (id,) = await field.client.submit(requests(1, 0))

    async def waits(word: str, what: str = "") -> str | None:
        view, _ = await field.client.rollout(id)
        assert view.waiting is not None
        return str(view.waiting) if str(view.waiting).startswith(f"{word}: {what}") else None

    why = "InferencePool policy needs an allocation, but for policy-ip-0 sbatch has not answered since "
    await field.yard.until(lambda: waits("SubmitUnanswered", why))
    sentence = str(await field.yard.until(lambda: waits("AllocationPending", "InferencePool policy ")))
    job = next(a.status.job_id for a in await field.allocations("InferencePool"))
    assert f"waits for job {job} of allocation policy-ip-0, which is pending: BeginTime (its start time is" in sentence
    assert " (since " in sentence
    await field.client.patch(
        ObjectKey(kind="RolloutPool", namespace="default", name="demo"), {"spec": {"suspend": True}}
    )
    await field.yard.until(lambda: waits("PoolSuspended"))
    assert (await field.client.cancel(id)).waiting is None
