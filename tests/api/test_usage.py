"""Usage and ended allocations over HTTP."""

from __future__ import annotations

import pytest

from rollyard.core.errors import BadRequest
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Status
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import pool, submit
from tests.store.record import ENDED
from tests.support.outside_api import Serve
from tests.support.played_pool import Played, PlayedPool


async def test_usage_has_the_jobs_and_the_rollouts_and_the_history_has_the_ended_jobs(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        now = api.parts.clock.time()
        ended = evolve(ENDED, started_at=now - 7200, ended_at=now - 3600, gpus=2)
        old = evolve(ENDED, uid="old", started_at=now - 90 * 86400, ended_at=now - 80 * 86400)
        for one in (ended, old):
            await api.parts.store.ended_allocations.add(one)
        await submit(api, "a", "b", "c")
        plays = iter((Played(tokens=5), Played(status=Status.FAILED, tokens=7), Played(tokens=11)))
        await PlayedPool(api.parts).play(lambda record: next(plays))

        found = await client.usage()
        assert [(row.pool_kind, row.pool, row.scored) for row in found.rows] == [
            ("InferencePool", "policy", 0),
            ("RolloutPool", "swe", 2),
        ]
        total = found.total
        assert (total.rollouts, total.scored, total.sampled_tokens, total.prompt_tokens) == (3, 2, 23, 9)
        assert total.gpu_hours == pytest.approx(2.0, abs=0.01)
        assert total.scored_per_gpu_hour == pytest.approx(1.0, abs=0.01)
        assert (await client.usage(since=now - 100 * 86400)).total.gpu_hours == pytest.approx(242.0, abs=0.01)
        assert (await client.usage("elsewhere")).rows == []
        assert [row.week is not None for row in (await client.usage(by="week", since=now - 60)).rows] == [True]
        assert (await client.usage(since=1e300)).rows == [], "no time that the database cannot hold"
        with pytest.raises(BadRequest, match="by must be one of pool, namespace, week"):
            await client.usage(by="user")

        beside = await client.slurm_usage()
        assert beside.missing is not None
        assert "there is no Slurm here" in beside.missing
        assert [(row.pool, row.jobs, row.slurm_gpu_hours) for row in beside.rows] == [("policy", 1, None)]
        assert beside.total.gpu_hours == pytest.approx(2.0, abs=0.01)

        assert await client.ended_allocations() == [ended]
        assert await client.ended_allocations(since=0) == [ended, old]
        assert await client.ended_allocations(since=0, limit=1) == [ended]
        assert await client.ended_allocations("elsewhere", since=0) == []
