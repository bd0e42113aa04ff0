"""Pools under load whose walltime ends again and again: no rollout is lost, and no gap where Slurm grants both at once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from rollyard.client.kubeconfig import load_context
from rollyard.kinds.base import get_condition
from rollyard.kinds.inference_pool import InferencePool
from tests.support.cluster import Cluster, NewCluster
from tests.support.slowness import slowness
from tests.support.slurm_field import Field, field_on

pytestmark = pytest.mark.slow(250)

SMALL = {"init": {"workers": {"min": 2}}, "run": {"workers": {"min": 2}}, "eval": {"workers": {"min": 2}}}


@dataclass
class Watch:
    """Values of the server's gauge of usable endpoints, read twice a second, and every change of the pool's conditions."""

    gaps: list[float] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    """Messages of RenewalBlocked, in order."""
    unready: list[str] = field(default_factory=list)
    """Messages of Ready while it was False, in order."""
    blocked_at: float | None = None
    gap_at: float | None = None

    async def run(self, of: Field) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._endpoints(of))
            both.create_task(self._conditions(of))

    async def _endpoints(self, of: Field) -> None:
        context = load_context(of.yard.data / "admin.kubeconfig")
        tls, since = context.tls(), None
        async with aiohttp.ClientSession() as http:
            while True:
                url, headers = f"{context.url}/metrics", {"Authorization": f"Bearer {context.token}"}
                async with http.get(url, headers=headers, ssl=tls) as answer:
                    found = re.search(r"^rollyard_endpoints_ready (\S+)", await answer.text(), re.M)
                now = time.monotonic()
                assert found is not None
                if float(found[1]) >= 1:
                    if since is not None:
                        self.gaps.append(now - since)
                    since = None
                elif since is None:
                    since, self.gap_at = now, self.gap_at or now
                await asyncio.sleep(0.5)

    async def _conditions(self, of: Field) -> None:
        async for _, pool in of.client.watch("InferencePool"):
            assert isinstance(pool, InferencePool)
            self._look(pool)

    def _look(self, pool: InferencePool) -> None:
        ready = get_condition(pool.status.conditions, "Ready")
        if ready is not None and ready.status == "False":
            self.unready.append(f"{ready.reason}: {ready.message}")
        found = get_condition(pool.status.conditions, "RenewalBlocked")
        if found is not None and found.status == "True":
            self.blocked_at = self.blocked_at or time.monotonic()
            if not self.blocked or self.blocked[-1] != f"{found.reason}: {found.message}":
                self.blocked.append(f"{found.reason}: {found.message}")


def stages(times: int) -> dict[str, dict[str, int]]:
    return {
        "init": {"timeoutSeconds": 5 * times},
        "run": {"timeoutSeconds": 10 * times},
        "eval": {"timeoutSeconds": 5 * times},
    }


def minutes(count: int) -> str:
    return f"00:{count:02}:00"


async def soak(of: Field, times: int, long_run: bool, enough: Callable[[Watch], Awaitable[bool]]) -> Watch:
    """Steady load through several walltimes, or in a short run until it is enough, and a watch on the endpoints.

    On a slow machine all goes slower.
    """
    watch = Watch()
    looking = asyncio.create_task(watch.run(of))
    try:
        until, n = time.monotonic() + times * (600 if long_run else 300), 0
        while time.monotonic() < until and (long_run or not await enough(watch)):
            assert not looking.done(), looking.result()
            await of.submit(f"steady-{n}", 1)
            n += 1
            await asyncio.sleep((4.0 if long_run else 8.0) * times)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    return watch


@pytest.fixture
async def overlap(new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(new_cluster(conf=("KillWait=5",)), tmp_path_factory) as found:
        yield found


async def test_an_overlap_leaves_no_gap(overlap: Field, long_run: bool) -> None:
    times = slowness()
    allocation = {"timeLimit": minutes(times * (2 if long_run else 1))}
    await overlap.begin(
        policy={
            "allocation": allocation,
            "replicas": 1,
            "renewal": {"beforeExpirySeconds": 30 * times, "drainTimeoutSeconds": 15 * times},
        },
        demo={"allocation": allocation, "replicas": 1, "stages": stages(times)},
    )

    async def made() -> list[int]:
        return [p.status.next_index for p in (await overlap.pool("InferencePool", "policy"), await overlap.pool())]

    async def renewed_twice(_: Watch) -> bool:
        live = [a for a in await overlap.yard.allocations(overlap.client) if not a.status.is_ended]
        return min(await made()) >= 3 and len(live) == 2 and all(a.status.ready for a in live)

    watch = await soak(overlap, times, long_run, renewed_twice)
    print(f"\n{len(overlap.ids)} rollouts, allocations made {await made()}, gaps {watch.gaps}")
    assert watch.gaps == []
    assert watch.unready == [], "Ready is about what is desired: it says nothing of one that drains or begins"
    assert min(await made()) >= 3, "each was renewed, and its successor too"
    await overlap.all_is_well(jobs=2)


@pytest.fixture
async def limited(accounting_cluster: Cluster) -> AsyncIterator[Cluster]:
    yield accounting_cluster
    await asyncio.to_thread(accounting_cluster.clear)


@pytest.mark.parametrize("strategy", ["Replace", "Overlap"])
async def test_where_one_job_is_all_that_is_allowed_the_gap_is_told_before(
    limited: Cluster, tmp_path_factory: pytest.TempPathFactory, strategy: str, long_run: bool
) -> None:
    if strategy == "Overlap" and not long_run:
        pytest.skip("the same limit met with the strategy Overlap: only with --long")
    times = slowness()
    async with field_on(limited, tmp_path_factory) as of:
        await of.begin(
            policy={
                "allocation": {"timeLimit": minutes(times * (2 if long_run else 1)), "qos": "one"},
                "replicas": 1,
                # a model server goes 20 s before its end, and the gap is told another 10 s earlier
                "renewal": {
                    "strategy": strategy,
                    "beforeExpirySeconds": 30 * times,
                    "drainTimeoutSeconds": 15 * times,
                },
            },
            demo={"replicas": 1, "stages": stages(times)},
        )

        async def one_gap(watch: Watch) -> bool:
            return bool(watch.gaps)

        watch = await soak(of, times, long_run, one_gap)
        print(f"\n{strategy}: {len(of.ids)} rollouts, gaps {watch.gaps}, told {watch.blocked[:1]}")
        assert watch.gaps, "one job at a time cannot be without"
        assert watch.blocked_at is not None
        assert watch.gap_at is not None
        assert watch.blocked_at < watch.gap_at
        reason = "StrategyReplace" if strategy == "Replace" else "QOSMaxJobsPerUserLimit"
        assert watch.blocked[0].startswith(reason)
        assert "expected gap: " in watch.blocked[0]
        await of.all_is_well(jobs=2)
