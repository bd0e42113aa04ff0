"""Rollouts of a whole pool in warm sandboxes, and a node agent that is killed while it has some."""

from __future__ import annotations

import os
import signal

import pytest

from rollyard.kinds.top import SandboxTop
from tests.support.host_processes import descendants
from tests.support.until import until
from tests.support.yard import Yard, requests

pytestmark = pytest.mark.slow(40)


async def test_rollouts_get_warm_sandboxes_and_a_killed_node_agent_leaves_none(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(
            client, policy={"replicas": 1}, demo={"allocation": {"cpusPerTask": 4}, "sandbox": {"warm": {"max": 4}}}
        )
        await yard.ready(client)

        async def run(prefix: str) -> None:
            ended = await yard.gather(client, await client.submit(requests(0, 5, prefix=prefix)))
            assert {(t.status.scored, t.attempt) for t in ended} == {(True, 1)}

        async def counts(claims: int) -> SandboxTop | None:
            (pool,) = (await client.top()).rollout_pools
            found = pool.sandboxes
            return found if found.warm + found.cold >= claims and found.ready else None

        await run("first")
        before = await yard.until(lambda: counts(10))  # 5 for INIT, 5 for EVAL
        await run("second")
        after = await yard.until(lambda: counts(20))
        assert after.warm > before.warm, (before, after)
        for pid in yard.processes("node-agent", "--allocation"):
            family = await until(lambda pid=pid: _with_a_sandbox(pid))  # type: ignore[misc]
            os.kill(pid, signal.SIGKILL)
            await until(lambda family=family: not any(one.runs for one in family))  # type: ignore[misc]


def _with_a_sandbox(pid: int) -> object:
    family = descendants(pid)
    return family if any(one.pid_inside == 1 for one in family) else None
