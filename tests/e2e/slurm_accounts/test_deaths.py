"""Causes of a job's end, on a real Slurm with accounts: each is reported as it was, and no log line is taken for it."""

from __future__ import annotations

import os
import pwd
import signal

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from tests.support.slurm_field import Field

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(119)]


async def told(field: Field, old: Allocation, *states: str) -> str:
    """How it ended, in short; the long sentence and the event say the same."""
    status = (await field.ended(old, *states)).status
    condition = get_condition(status.conditions, "Ready")
    assert condition is not None
    certain = status.reason.partition(";")[0].rstrip("…")
    assert certain in condition.message
    assert len(status.reason) <= 120

    async def said() -> bool:
        return condition.message in await field.said("JobEnded")

    await field.yard.until(said)
    assert status.end_time is not None
    await field.shown_is_true()
    return status.reason


async def test_each_death_is_told_as_it_was_done(field: Field) -> None:
    old = await field.running()
    (pid,) = field.yard.processes("node-agent", old.metadata.name)
    os.kill(pid, signal.SIGKILL)
    assert (await told(field, old, "FAILED")).startswith("killed by signal 9 (KILL), sender unknown")

    server = await field.running("InferencePool")
    (pid,) = field.yard.processes("inference-server", server.metadata.name)
    os.kill(pid, signal.SIGKILL)
    assert (await told(field, server, "FAILED")).startswith("killed by signal 9 (KILL), sender unknown")

    await field.yard.ready(field.client)
    old = await field.running()
    await field.slurm("scancel", str(old.status.job_id))
    me = pwd.getpwuid(os.getuid())
    assert await told(field, old, "CANCELLED") == f"cancelled by uid {me.pw_uid} ({me.pw_name}), not by Rollyard"

    await field.yard.ready(field.client)
    old = await field.running()
    await field.slurm("scontrol", "update", f"JobId={old.status.job_id}", "Requeue=1")
    await field.slurm("scontrol", "requeue", str(old.status.job_id))
    await field.requeued(old)

    await field.yard.ready(field.client)
    server = await field.running("InferencePool")
    await field.lose(server.status.node)
    assert await told(field, server, "NODE_FAIL") == f"NODE_FAIL on node {server.status.node}"
    await field.regain(server.status.node)

    await field.settled()  # the node may have held an allocation of each pool
    await field.yard.ready(field.client)
    old = await field.running()
    (pid,) = field.yard.processes("node-agent", old.metadata.name)
    os.kill(pid, signal.SIGTERM)
    said = await told(field, old, "COMPLETED")
    assert said.startswith("exit code 0, cause unknown")  # its last words may be older than 5 s by then

    await field.yard.ready(field.client)
    before = set(await field.said("JobEnded"))
    await field.client.scale(ObjectKey(kind="RolloutPool", namespace="default", name="demo"), 1)

    async def given_back() -> bool:
        return any("ended by Rollyard: " in said for said in {*await field.said("JobEnded")} - before)

    await field.yard.until(given_back)
    await field.all_is_well(jobs=2)
