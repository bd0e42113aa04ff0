"""Planned successors over HTTP."""

from __future__ import annotations

from datetime import timedelta

from rollyard.core.clock import as_datetime
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.renewal import planned_successors
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import _stored, pool
from tests.support import make
from tests.support.outside_api import Serve


async def test_the_plan_has_what_runs_and_has_no_successor_yet(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        stored = await _stored(api)
        assert isinstance(stored, RolloutPool)
        owner = {"kind": "RolloutPool", "name": "swe", "uid": stored.metadata.uid}
        now = as_datetime(api.parts.clock.time())
        times = {"start_time": now, "end_time": now + timedelta(hours=3)}
        job = {"job_state": "RUNNING", "node": "n1", "ready": True, "ready_at": now, **times}
        allocations = [
            make.allocation("swe-rp-0", spec={"pool": owner}, job_id="1", **job),
            make.allocation("swe-rp-1", spec={"pool": owner}, job_id="2", **job),
            make.allocation("swe-rp-2", spec={"pool": owner, "successor_of": "swe-rp-1"}, job_state="PENDING"),
        ]
        for one in allocations:
            await api.store.objects.create(one)
        found = await client.planned_successors()
        assert found == planned_successors(stored, allocations)
        assert [one.allocation for one in found] == ["swe-rp-0"]
        assert await client.planned_successors("elsewhere") == []
