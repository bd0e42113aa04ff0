"""Causes of a job's end, on a real Slurm with accounts: each is reported as it was, and no log line is taken for it."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import signal

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from tests.support import forked_commands
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


@pytest.mark.long  # each question to accounting takes its whole limit of time
async def test_without_accounting_an_end_is_shown_all_the_same(field: Field) -> None:
    """slurmdbd is down: squeue has the end, and nobody the name of the user who cancelled the job."""
    await asyncio.to_thread(field.cluster.stop_daemon, "slurmdbd")
    try:
        await field.shown_is_true()
        old = await field.running()
        await field.slurm("scancel", str(old.status.job_id))
        await field.ended(old, "CANCELLED")
        await field.all_is_well()
        found = await field.client.slurm_usage()
        assert found.missing is not None
        assert found.missing.startswith("Slurm's accounting cannot be read: ")
        assert found.total.slurm_cpu_hours is None
        assert found.total.cpu_hours > 0
        if field.page is not None:
            (told,) = (await field.page.read("#/usage"))["unknown"]
            assert told.startswith("Not known: Slurm's accounting cannot be read: ")
    finally:
        await asyncio.to_thread(field.cluster.start_daemon, "slurmdbd")


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


async def test_usage_beside_accounting_tells_why_a_job_differs(field: Field) -> None:
    """Also the jobs of the test above: killed, cancelled, requeued, on a lost node."""
    await field.become(policy={"allocation": {"gpusPerNode": 2}})
    await field.yard.ready(field.client)

    async def replaced() -> bool:  # and no job is about to end
        return not any(one.spec.drain for one in await field.yard.allocations(field.client))

    await field.yard.until(replaced)
    env = field.yard.user_env  # the server asks sacct, and the command needs no Slurm
    words = ("usage", "--slurm", "--since", "1h")
    done = await asyncio.to_thread(forked_commands.run, *words, "-o", "json", env=env, seconds=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["slurm"]["missing"] is None
    jobs = {job["id"]: job for job in found["slurm"]["jobs"]}
    ours = {one.job_id for one in await field.client.ended_allocations() if one.started_at is not None}
    live = {a.status.job_id: a for a in await field.yard.allocations(field.client) if not a.status.is_ended}
    assert jobs.keys() == ours | live.keys()
    assert field.stranger not in jobs

    # the same hours by sacct itself
    rows = await field.slurm("sacct", "-a", "-n", "-P", "-X", "-D", "-o", "JobID,State,ElapsedRaw,AllocCPUS,AllocTRES")
    seconds, requeued = dict[str, int](), list[str]()
    for id, state, elapsed, cpus, resources in (row.split("|") for row in rows.splitlines()):
        seconds[id] = seconds.get(id, 0) + int(elapsed) * int(cpus or 0)
        requeued += [id] if state == "REQUEUED" else []
        if id in live and live[id].spec.pool.kind == "InferencePool" and not live[id].spec.drain:
            assert "gres/gpu=2" in resources
    for id in ours:
        assert jobs[id]["slurm_cpu_hours"] * 3600 == pytest.approx(seconds[id])
        same = jobs[id]["cpu_hours"] * 3600 == pytest.approx(seconds[id], abs=1.0)
        assert same or jobs[id]["why"], jobs[id]
    assert requeued
    assert set(requeued) <= ours, "its first run is not forgotten"
    (gpus,) = [job for job in jobs.values() if job["gpu_hours"] > 0]
    assert gpus["gpu_hours"] == pytest.approx(2 * gpus["cpu_hours"])
    assert gpus["slurm_gpu_hours"] == pytest.approx(gpus["gpu_hours"], abs=2 * 1.0 / 3600)
    total, rows = found["slurm"]["total"], found["slurm"]["rows"]
    assert {row["pool"] for row in rows} == {"demo", "policy"}
    for name in ("cpu_hours", "slurm_cpu_hours", "gpu_hours", "slurm_gpu_hours"):
        assert sum(row[name] for row in rows) == pytest.approx(total[name])
        assert sum(job[name] or 0.0 for job in jobs.values() if job["slurm_cpu_hours"] is not None) == pytest.approx(
            total[name]
        )
    told = sum(part["cpu_hours"] for part in found["slurm"]["differences"])
    assert told == pytest.approx(total["slurm_cpu_hours"] - total["cpu_hours"])
    done = await asyncio.to_thread(forked_commands.run, *words, env=env, seconds=120)
    assert all(part["message"] in done.stdout for part in found["slurm"]["differences"])
    assert re.search(rf"^total .* {total['differing']} +{total['unknown_jobs']}$", done.stdout, re.MULTILINE), (
        done.stdout
    )
    if field.page is not None:
        tables = (await field.page.read("#/usage?hours=1"))["tables"]
        shown = {row["Pool"]: row for row in tables["Hours beside Slurm's"]}
        for row in [*rows, {**total, "pool": "Total"}]:
            of = shown[row["pool"]]
            counts = (of["Jobs"], of["Differ"], of["Unknown to Slurm"])
            assert counts == (str(row["jobs"]), str(row["differing"]), str(row["unknown_jobs"]))
            assert float(of["CPU-hours by Slurm"]) == pytest.approx(row["slurm_cpu_hours"], abs=0.1)
        causes = {part["message"] for part in found["slurm"]["differences"]}
        assert {row["Cause"] for row in tables.get("Why Slurm has more or less", [])} == causes
        differing = {id for id, job in jobs.items() if job["why"]}
        assert {row["Job"] for row in tables.get("Jobs that differ most", [])} <= differing
