"""Rollouts in RUN whose model servers were taken away say so, and go on when there are some again."""

from __future__ import annotations

import pytest

from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import Sampling, Stage, Status
from tests.support.yard import Yard, kill, requests

KEY = ObjectKey(kind="InferencePool", namespace="default", name="policy")
LONG = Sampling(max_tokens=3000, temperature=1000, seed=1)
"""Tokens so random that hardly a turn comes to an end by itself soon."""


@pytest.mark.usefixtures("long_leases")
async def test_a_rollout_that_is_parked_in_run_says_why_and_since_when(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        ids: list[str] = []

        async def in_run() -> bool:
            live = [r async for r in client.rollouts() if not r.status.terminal]
            if not live:  # none was submitted yet, or a busy machine looks only when they have ended
                more = requests(8, 0, prefix=f"long-{len(ids)}", sampling=LONG, agent={"max_turns": 1})
                ids.extend(await client.submit(more))
            return sum(r.stage is Stage.RUN for r in live) >= 3  # a turn may end by itself at any moment

        await yard.until(in_run)
        (engine,) = yard.processes("inference-server")
        await client.patch(KEY, {"spec": {"suspend": True}})
        kill(engine)  # it would serve what it has to the end

        async def told() -> list[tuple[str, str]]:
            found = [r async for r in client.rollouts() if r.status is Status.RUNNING]
            parked = [(r.id, str(r.waiting)) for r in found if r.waiting is not None]
            return parked if len(parked) == len(found) else []

        parked = await yard.until(told)
        for _, sentence in parked:
            assert sentence.startswith("Parked: in RUN, its budget stands still: InferencePool policy is suspended")
            assert "rollyard resume ip/policy" in sentence
            assert "(since 20" in sentence
        await client.patch(KEY, {"spec": {"suspend": False}})
        ended = await yard.gather(client, ids)
        assert {t.attempt for t in ended} == {1}
        assert all(t.status.scored for t in ended)
        assert [r.waiting async for r in client.rollouts()] == [None] * len(ids)
        (one,) = [t for t in ended if t.id == parked[0][0]]
        out, _ = await yard.rollyard("rollouts", "describe", one.id)
        words = [(entry.stage, entry.event) for entry in (await client.rollout_history(one.id)).entries]
        assert words[:3] == [("INIT", "Queued"), ("INIT", "Leased"), ("RUN", "StageBegun")]
        assert ("RUN", "EndpointMoved") in words
        assert words[-2:] == [("EVAL", "StageBegun"), ("EVAL", "Ended")]
        assert f"Ended{' ' * 11}{one.status.value}, reward {one.reward:g}; at work: INIT" in out
