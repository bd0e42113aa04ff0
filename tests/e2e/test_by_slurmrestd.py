"""Pools whose server asks slurmrestd alone, by a port and a token: bursts as arrays, rollouts, cancels."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster import NewCluster
from tests.support.yard import Yard, end, requests


async def test_pools_live_by_slurmrestd(new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = await asyncio.to_thread(lambda: new_cluster(rest=True))
    yard = Yard(tmp_path_factory.mktemp("yard"), cluster)
    token = yard.folder / "token"
    token.write_text(cluster.token())
    yard.driven_by = "rest"
    yard.env |= {
        "ROLLYARD_SLURMRESTD": cluster.env["SLURMRESTD_URL"],
        "ROLLYARD_SLURM_JWT_FILE": str(token),
    }
    yard.start()
    try:
        async with yard.client() as client:
            await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 2})
            await yard.ready(client)
            ids = await client.submit(requests(0, 3, prefix="r"))
            assert all(t.status.scored for t in await yard.gather(client, ids))
            jobs = await yard.jobs()
            assert len([job for job in jobs if "_" in job.id]) >= 2, jobs
            await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})

            async def fewer() -> bool:
                return len(await yard.jobs()) == len(jobs) - 1

            await yard.until(fewer)
    finally:
        await end(yard)
