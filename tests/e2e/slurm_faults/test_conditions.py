"""Conditions of a pool while Slurm, a person or a template disturbs it, on a real cluster."""

from __future__ import annotations

import pytest

from rollyard.kinds.base import Condition
from tests.support.slurm_field import Field

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(304)]


async def conditions(field: Field, kind: str = "RolloutPool", name: str = "demo") -> dict[str, Condition]:
    """Those that were observed at the pool's generation."""
    pool = await field.pool(kind, name)
    return {c.type: c for c in pool.status.conditions if c.observed_generation >= pool.metadata.generation}


async def test_a_scancel_of_all_jobs_and_a_suspended_one_are_told_as_what_they_are(field: Field) -> None:
    seen: set[str] = set()
    old = await field.allocations()
    await field.slurm("scancel", *[str(a.status.job_id) for a in old])

    async def replaced() -> bool:
        fact = (await conditions(field)).get("Ready")
        seen.add(fact.reason if fact is not None else "")
        names = {a.metadata.name for a in await field.allocations() if a.status.ready}
        return fact is not None and fact.status == "True" and len(names - {a.metadata.name for a in old}) == 2

    await field.yard.until(replaced)
    assert not seen & {"CrashLoop", "AllocationFailed"}
    assert (await field.pool()).status.failures == 0

    server = await field.running("InferencePool")
    assert server.status.job_id is not None
    await field.slurm("scontrol", "suspend", server.status.job_id)
    words = f"SuspendedBySlurm: 0 of 1 allocations ready; suspended by Slurm: job {server.status.job_id} of"

    async def suspended() -> bool:
        return (await field.condition("Ready", "False", "InferencePool", "policy")).startswith(words)

    await field.yard.until(suspended)
    await field.shown_is_true()
    await field.slurm("scontrol", "resume", server.status.job_id)
    await field.condition("Ready", "True", "InferencePool", "policy")
    await field.all_is_well()


async def test_a_change_that_fails_is_told_while_the_old_ones_serve_and_a_wait_for_it_fails(field: Field) -> None:
    """A model path that does not exist, and a setup line that fails: `get` said AllReady, and `wait` returned at once."""
    nowhere = str(field.yard.folder / "nowhere")
    await field.apply(policy={"model": {"path": nowhere}}, demo={"allocation": {"setup": "echo no share; exit 3"}})
    wait_updated = ("--for", "condition=Updated", "--timeout", "110")
    out, err = await field.yard.rollyard("wait", "rp/demo", *wait_updated, code=1)
    words = out + err
    assert "rolloutpool/demo: Updated is False: CrashLoop: 0 of 2 allocations are up to date" in words
    assert "exit code 3" in words

    async def model_missing() -> bool:
        found = (await conditions(field, "InferencePool", "policy")).get("Updated")
        return found is not None and found.reason in ("AllocationFailed", "CrashLoop") and nowhere in found.message

    await field.yard.until(model_missing)
    for kind, name in (("InferencePool", "policy"), ("RolloutPool", "demo")):
        found = await conditions(field, kind, name)
        assert (found["Ready"].status, found["Ready"].reason) == ("True", "AllReady")
        replicas = (await field.pool(kind, name)).status.replicas
        assert (replicas.ready, replicas.updated) == (replicas.desired, 0)
    await field.apply()
    for target in ("ip/policy", "rp/demo"):
        await field.yard.rollyard("wait", target, *wait_updated)
    await field.all_is_well()


async def test_an_end_of_the_walltime_that_no_successor_covers_is_told(field: Field) -> None:
    """All nodes drained: Ready was True to the last second, and nothing was placed for the last 88 of them."""
    budgets = {"init": {"timeoutSeconds": 5}, "run": {"timeoutSeconds": 10}, "eval": {"timeoutSeconds": 5}}
    await field.become(demo={"allocation": {"timeLimit": "00:01:00"}, "replicas": 1, "stages": budgets})
    await field.slurm("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=maintenance")
    blocked = await field.condition("RenewalBlocked", "True")
    assert "and its successor demo-rp-" in blocked
    assert "StrategyReplace" not in blocked
    message = await field.condition("Ready", "False")
    await field.shown_is_true()
    assert message.startswith("WalltimeEnds: accepts no rollouts: the walltime ends at")
    assert "and a rollout needs 16 s" in message, "INIT, a call and the sampling of a turn: it can move"

    await field.slurm("scontrol", "update", "NodeName=ALL", "State=resume")
    await field.condition("Ready", "True")
    await field.condition("RenewalBlocked", "False")
    await field.all_is_well(jobs=2)
