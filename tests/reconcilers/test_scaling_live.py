"""Scaling as the server does it, on a real store and real jobs of this machine."""

from __future__ import annotations

import pytest

from rollyard.cli.describe import _lines
from tests.support.reconciler_site import Site


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools are looked at more often than by a server, and bursts are over sooner."""
    monkeypatch.setattr("rollyard.reconcilers.pool.REFRESH_SECONDS", 0.2)
    monkeypatch.setattr("rollyard.reconcilers.pool.QUIET_SECONDS", 0.2)
    monkeypatch.setattr("rollyard.reconcilers.autoscaler.PANIC_SECONDS", 0.2)


async def test_from_zero_with_the_demand_and_back_with_its_end(site: Site) -> None:
    scaling = {"maxReplicas": 3, "idleTimeoutSeconds": 0, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}
    await site.apply(replicas=None, autoscaling=scaling, stages={"run": {"workers": {"min": 1, "max": 2}}})
    await site.submit(3)
    agents = [await site.connect(a) for a in await site.running(2)]
    pool = await site.pool()
    (first,) = pool.status.decisions
    assert (first.desired, first.message) == (
        2,
        "INIT and RUN 3, target 2 each; EVAL 0, target 2 each; the demand needs 2, bounds 0 to 3",
    )
    (scaled,) = await site.events("Scaled")
    assert scaled.message == f"from 0 to 2 allocations: {first.message}"
    assert any("INIT and RUN 3, target 2 each" in line for line in _lines(pool, [], [], []))

    await site.submit(7)
    await site.running(3)
    limited = await site.condition("ScalingLimited")
    assert limited is not None
    assert (limited.status, limited.reason) == ("True", "TooManyReplicas")
    assert limited.message == "the demand needs 5 allocations, but spec.autoscaling.maxReplicas is 3"

    await site.lease(agents[0])
    await site.cancel_queued()
    (left,) = await site.running(1)
    assert left.metadata.name == agents[0].identity.allocation, "it is busy, and all that is needed"
    assert not left.spec.drain
    await site.finish(agents[0])
    await site.running(0)
    assert [d.desired for d in (await site.pool()).status.decisions] == [2, 3, 1, 0]


async def test_at_its_cap_a_pool_gives_back_what_is_idle_and_drains_what_is_busy(site: Site) -> None:
    await site.apply(replicas=2, maxGpuHours=1000, allocation={"setup": "exec sleep 600", "gpusPerNode": 2})
    busy, idle = [await site.connect(a) for a in await site.running(2)]
    await site.lease(busy)

    async def counted() -> bool:
        return len((await site.pool()).status.gpu_ledger.spells) == 2

    await site.until(counted)
    await site.restart()
    await site.connect_again(busy, idle)
    await site.change(maxGpuHours=0.0001)
    (left,) = await site.running(1)
    assert (left.metadata.name, left.spec.drain) == (busy.identity.allocation, True)
    for type, status in (("ScalingLimited", "True"), ("Ready", "False")):
        found = await site.condition(type)
        assert found is not None
        assert (found.status, found.reason) == (status, "GpuHoursSpent")
        assert found.message.startswith("the 0.0001 GPU-hours of spec.maxGpuHours are used up")
        assert found.message.endswith("raise or remove spec.maxGpuHours to continue")
    (warning,) = await site.events("GpuHoursSpent")
    assert warning.type == "Warning"
    decision = (await site.pool()).status.decisions[-1]
    assert decision.desired == 0
    assert decision.message.endswith("GPU-hours used, spec.maxGpuHours is 0.0001")
    await site.finish(busy)
    await site.running(0)
    pool = await site.pool()
    spent = pool.status.gpu_ledger
    assert any(line.endswith("spent, at most 0.0001 (spec.maxGpuHours)") for line in _lines(pool, [], [], []))
    assert spent.hours(site.now()) > 0
    await site.change(maxGpuHours=1000)
    await site.running(2)
    assert (await site.pool()).status.gpu_ledger.hours(site.now()) >= spent.hours(0.0), "nothing is forgotten"
