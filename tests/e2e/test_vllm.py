"""The whole service on real vLLM, built for CPUs: an engine is killed in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from e2e_yard import MODEL, Yard, requests
from recompute import differences

from rollyard.client.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.pools import InferencePool
from rollyard.kinds.rollout import Status, Trajectory

pytestmark = pytest.mark.heavy

READY_SECONDS, END_SECONDS = 400.0, 300.0


async def pool(client: AsyncClient) -> InferencePool:
    found = await client.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
    assert isinstance(found, InferencePool)
    return found


async def test_an_engine_killed_in_mid_run_costs_no_rollout_and_comes_back(vllm_python: str, yard: Yard) -> None:
    async with yard.client() as client:
        # In float32, as the logprobs are compared with those of transformers.
        vllm = {"python": vllm_python, "extraArgs": ["--dtype", "float32"]}
        await yard.apply(client, policy={"engine": {"embedded": None, "vllm": vllm}, "allocation": {"memory": "4G"}})

        async def both() -> bool:
            return (await pool(client)).status.replicas.ready == 2

        await yard.until(both, READY_SECONDS)
        await yard.ready(client)
        ids = await client.submit(requests(12, 12, n=3))
        ended: list[Trajectory] = []

        async def collect() -> None:
            async for _, trajectory in client.stream(pool="demo"):
                ended.append(trajectory)

        collecting = asyncio.create_task(collect())
        try:

            async def under_way() -> bool:
                endpoints = (await pool(client)).status.endpoints
                return len(ended) >= 8 and all(endpoint.sessions for endpoint in endpoints)

            await yard.until(under_way, END_SECONDS)
            victim, _ = yard.processes("vllm.entrypoints.cli.main", "--uds")
            os.kill(victim, signal.SIGKILL)

            async def seen() -> bool:
                return any(not endpoint.ready for endpoint in (await pool(client)).status.endpoints)

            await yard.until(seen)
            trajectories = await yard.gather(client, ids, END_SECONDS)
            async with asyncio.timeout(END_SECONDS):
                while len(ended) < len(ids):
                    await asyncio.sleep(0.1)
        finally:
            collecting.cancel()
        assert sorted(t.id for t in ended) == sorted(ids), "each ends once"
        assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
        assert {t.attempt for t in trajectories} == {1}, "a dead engine is no new attempt"
        assert sum(t.reward or 0 for t in trajectories) / len(trajectories) >= 0.6
        off = await asyncio.to_thread(differences, trajectories, MODEL)
        assert len(off) >= 1000
        assert max(off) < 0.02
        await yard.until(both, READY_SECONDS)
        assert len(await yard.jobs()) == 4, "it came back in its own job"
