"""The committed policy, through the real service, on tasks it has never seen."""

from __future__ import annotations

import pytest

from rollyard.trajectory import Trajectory
from tests.support.yard import Yard, requests


@pytest.mark.long
async def test_the_policy_solves_held_out_tasks_at_temperature_one(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client)
        await yard.ready(client)
        ids = await client.submit(requests(400, 400, seed=11, sampling={"temperature": 1.0}))
        ended = await yard.gather(client, ids, 1200)
    math, code = (mean([t for t in ended if t.task.kind == kind]) for kind in ("math", "code"))
    print(f"math {math:.4f}, code {code:.4f}, 400 each")
    assert math >= 0.8
    assert code >= 0.7


def mean(ended: list[Trajectory]) -> float:
    assert len(ended) == 400
    return sum(t.reward or 0.0 for t in ended) / len(ended)
