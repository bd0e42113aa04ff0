"""Endpoints that drain and die under rollouts, with real engines and node agents."""

from __future__ import annotations

from collections import Counter

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import EndpointStatus, InferencePool
from rollyard.kinds.rollout import Status
from tests.support.yard import Yard, kill, requests

pytestmark = pytest.mark.slow(40)

KEY = ObjectKey(kind="InferencePool", namespace="default", name="policy")


async def test_an_endpoint_that_drains_is_empty_soon_and_one_that_is_killed_costs_no_rollout(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client)
        await yard.ready(client)
        ids = await client.submit(requests(12, 1, n=2))

        async def at_work() -> bool:
            (pool,) = (await client.top()).inference_pools  # a status has the sessions of up to 30 s ago
            return bool(pool.endpoints) and all(e.sessions for e in pool.endpoints)

        await yard.until(at_work)
        await client.scale(KEY, 1)  # one of the two drains, with sessions on it

        async def one_left() -> bool:
            return [e.draining for e in await shown(client)] == [False]

        await yard.until(one_left)
        await client.scale(KEY, 2)
        await yard.ready(client)
        kill(yard.processes("rollyard.engine.embedded")[0])
        ended = await yard.gather(client, ids)
        assert Counter(t.status for t in ended).keys() <= {Status.COMPLETED, Status.TRUNCATED}
        assert all(t.reward is not None for t in ended)
        assert {t.attempt for t in ended} == {1}, "each went on where it was, elsewhere"
        await yard.ready(client)


async def shown(client: AsyncClient) -> list[EndpointStatus]:
    pool = await client.get(KEY)
    assert isinstance(pool, InferencePool)
    return pool.status.endpoints
