"""One node of a real Slurm ends each job in a second, and is always idle: the other nodes serve, and the pool says which
node it avoids and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollyard.kinds.base import get_condition
from tests.e2e.test_inference_server import apply, pool
from tests.support.cluster import start_cluster, stop_cluster
from tests.support.yard import Yard, end

pytestmark = pytest.mark.slow(25)

MODULE = "Lmod has detected the following error: unknown module cuda/12"
SETUP = f'[ "$SLURMD_NODENAME" != n1 ] || {{ echo "{MODULE}" >&2; exit 1; }}'


async def test_a_node_on_which_each_job_dies_at_once_does_not_get_every_retry(tmp_path: Path) -> None:
    cluster = start_cluster(nodes=2)
    yard = Yard(tmp_path, cluster)
    try:
        yard.start()
        async with yard.client() as client:
            await apply(client, replicas=2, allocation={"setup": SETUP, "cpusPerTask": 1, "memory": "1GiB"})

            async def two_serve() -> bool:
                return (await pool(client)).status.replicas.ready == 2

            await yard.until(two_serve)
            allocations = await yard.allocations(client)
            assert {a.status.node for a in allocations if a.status.ready} == {"n2"}
            failed = [a for a in allocations if a.status.job_state == "FAILED"]
            assert {a.status.node for a in failed} == {"n1"}
            condition = get_condition((await pool(client)).status.conditions, "NodesUsable")
            assert condition is not None
            assert (condition.status, condition.reason) == ("False", "NodeAvoided")
            described, _ = await yard.rollyard("describe", "inferencepool", "policy")
            assert "no job starts on n1 until" in described
            assert MODULE in described
            listed, _ = await yard.rollyard("get", "inferencepool", "policy")
            assert "AllReady,NodesUsable=False" in listed
    finally:
        await end(yard)
        stop_cluster(cluster)
        shutil.rmtree(tmp_path)
