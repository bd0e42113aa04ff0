"""A yard on a real cluster, and the conditions that must hold after every fault."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.event import Event
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import Status
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support.cluster import Cluster, start_cluster, stop_cluster
from tests.support.shims import Shims
from tests.support.shown import ShownPage, shown_page
from tests.support.yard import LEASE_SECONDS, Yard, end, merge, requests

BUDGETS = {
    "init": {"timeoutSeconds": 120},
    "run": {"timeoutSeconds": 240},
    "eval": {"timeoutSeconds": 120, "workers": {"max": 1}},
}
ROLLOUTS = 2
JOBS = 3
"""Jobs of the pools as `begin` makes them."""
QUICK = ("SlurmdTimeout=60", "MessageTimeout=5", "ReturnToService=1")
"""Settings of a cluster whose commands give up soon, and whose nodes are not lost because the machine is busy."""


class Field:
    """A yard on a cluster, beside a foreign job with a name like ours."""

    def __init__(self, yard: Yard, cluster: Cluster, shims: Shims) -> None:
        self.yard, self.cluster, self.shims = yard, cluster, shims
        self.stranger = ""
        self.ids: list[str] = []
        """Ids of the rollouts that `all_is_well` has not seen end."""
        self.submitted = 0
        self.attempts: set[int] = set()
        """Attempt numbers of the results that `all_is_well` saw last."""
        self.page: ShownPage | None = None
        """The page in a browser; None if there is no browser, or if nothing is compared with it."""
        self.client: AsyncClient
        self._open = contextlib.AsyncExitStack()

    async def connect(self) -> None:
        """Connect, again after a restart: the server may be on another port."""
        await self.close()
        self.client = await self._open.enter_async_context(self.yard.client())

    async def close(self) -> None:
        await self._open.aclose()

    async def begin(self, **changes: dict[str, Any]) -> None:
        """Start both pools, one model server and two node agents unless `changes` say otherwise, and some rollouts."""
        await self._begin_stranger()
        await self.apply(**changes)
        await self.yard.ready(self.client)
        await self.submit("before")

    async def _begin_stranger(self) -> None:
        options = ("--job-name=rollyard-demo-rp-0", "--comment=rollyard:another:uid", "--nodelist=n4", "--time=60")
        self.stranger = await asyncio.to_thread(self.cluster.submit, "sleep 100000", *options)

    async def apply(self, **changes: dict[str, Any]) -> None:
        """Apply the pools on other nodes than the foreign job, so that faults of our nodes do not affect it."""
        ours: dict[str, dict[str, Any]] = {
            "policy": {"allocation": {"exclude": ["n4"]}, "replicas": 1},
            "demo": {"allocation": {"exclude": ["n4"]}, "stages": copy.deepcopy(BUDGETS)},
        }
        for name, spec in changes.items():
            merge(ours[name], spec)
        await self.yard.apply(self.client, **ours)

    async def become(self, **changes: dict[str, Any]) -> None:
        """Apply the pools and wait until every allocation is up to date."""
        await self.apply(**changes)

        async def updated() -> bool:
            for kind, name in (("InferencePool", "policy"), ("RolloutPool", "demo")):
                pool = await self.pool(kind, name)
                found = get_condition(pool.status.conditions, "Updated")
                if found is None or found.status != "True" or found.observed_generation < pool.metadata.generation:
                    return False
            return True

        await self.yard.until(updated)

    async def restore(self) -> None:
        """Bring back what `begin` started, after another test, also one that failed midway; rollouts are under way then."""
        self.shims.clear()
        await asyncio.to_thread(self.cluster.mend)
        if await asyncio.to_thread(self.cluster.state, self.stranger) != "RUNNING":
            await self._begin_stranger()
        self.ids = [id for id in self.ids if not (await self.client.rollout(id))[0].status.terminal]
        await self.become()
        await self.settled()
        await self.yard.ready(self.client)
        await self.submit("before", 1)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Keep the page open in a browser, so that what it shows is compared after each fault."""
        async with shown_page(self.yard) as self.page:
            yield
        self.page = None

    async def submit(self, prefix: str, count: int = ROLLOUTS) -> None:
        """Submit tasks in code: the first one in mathematics costs a node agent two seconds of CPU time."""
        self.ids += await self.client.submit(requests(0, count, prefix=f"{prefix}-{self.submitted}"))
        self.submitted += count

    async def all_is_well(self, *, jobs: int = JOBS, seconds: float = 300.0) -> None:
        """Finish more work, then check that as many jobs run as are declared, each of one allocation."""
        await self.submit("after", 1)
        trajectories = await self.yard.gather(self.client, self.ids, seconds)
        assert sorted(t.id for t in trajectories) == sorted(set(self.ids))
        assert {t.status for t in trajectories} == {Status.COMPLETED}, [t.error for t in trajectories]
        self.attempts = {t.attempt for t in trajectories}
        self.ids.clear()
        await self.settled(jobs)
        assert await asyncio.to_thread(self.cluster.state, self.stranger) == "RUNNING"
        await self.shown_is_true()

    async def shown_is_true(self) -> None:
        """Compare the page with the queue, the processes and the store."""
        if self.page is not None:
            await self.page.is_true()

    async def shown_as_away(self) -> None:
        """The page and the command line say that Slurm's queue is not known, and since when."""
        _, said = await self.yard.rollyard("get", "allocations")
        assert re.fullmatch(r"Warning: Slurm's queue is (unknown|in doubt) since 20[^;]* UTC .*before that\n", said), (
            said
        )
        if self.page is not None:
            await self.page.says_slurm_is_away()

    async def shown_as_not_connected(self, since: float) -> None:
        """The page says that the server is away. `since`: Unix time of the server's end."""
        if self.page is not None:
            await self.page.says_not_connected(since)

    async def settled(self, jobs: int = JOBS) -> None:
        """Wait until as many jobs live as are declared, and each is one of an allocation."""
        seen: list[Any] = []

        async def look() -> bool:
            allocations = await self.yard.allocations(self.client)
            active = {a.status.job_id for a in allocations if not a.status.is_ended}
            seen[:] = [[(a.metadata.name, a.status) for a in allocations]]
            if len(active) != jobs:  # a look at the queue is a process
                return False
            live = {j.id for j in await self.yard.jobs() if j.id != self.stranger}
            seen.append(live)
            return live == active

        try:
            await self.yard.until(look)
        except AssertionError as error:
            raise AssertionError(f"{seen}\n{error}") from None

    async def allocations(self, kind: str = "RolloutPool") -> list[Allocation]:
        return [a for a in await self.yard.allocations(self.client) if a.spec.pool.kind == kind]

    async def running(self, kind: str = "RolloutPool") -> Allocation:
        """Wait for an allocation whose job runs and whose process has registered; return it."""

        async def look() -> Allocation | None:
            found = [a for a in await self.allocations(kind) if a.status.ready and not a.spec.drain]
            return next((a for a in found if a.status.job_state == "RUNNING"), None)

        found = await self.yard.until(look)
        assert isinstance(found, Allocation)
        return found

    async def pool(self, kind: str = "RolloutPool", name: str = "demo") -> RolloutPool | InferencePool:
        found = await self.client.get(ObjectKey(kind=kind, namespace="default", name=name))
        assert isinstance(found, RolloutPool | InferencePool)
        return found

    async def condition(self, type: str, status: str, kind: str = "RolloutPool", name: str = "demo") -> str:
        """Wait for the condition; return `reason: message`."""

        async def look() -> str | None:
            found = get_condition((await self.pool(kind, name)).status.conditions, type)
            return f"{found.reason}: {found.message}" if found is not None and found.status == status else None

        return str(await self.yard.until(look))

    async def ended(self, old: Allocation, *states: str, seconds: float = 120.0) -> Allocation:
        """Wait until its job has ended with one of these states, also for us; return the allocation.

        A pool keeps few ended allocations, so the changes are read: this one may be removed a moment later.
        """
        async with asyncio.timeout(seconds):
            async for _, found in self.client.watch("Allocation", since=old.metadata.resource_version):
                assert isinstance(found, Allocation)
                if found.metadata.uid == old.metadata.uid and found.status.job_state in states:
                    return found
        raise AssertionError(f"{old.metadata.name} did not end as one of {states}")

    async def said(self, reason: str) -> list[str]:
        """Messages of the events with this reason."""
        events, _ = await self.client.list_objects("Event")
        return [e.message for e in events if isinstance(e, Event) and e.reason == reason]

    async def requeued(self, old: Allocation) -> None:
        """Wait until its requeued job's second run has ended; the pool may have removed the allocation by then."""
        why = "requeued, not by Rollyard (restart 1); that run was ended, because its work has moved"

        async def told() -> bool:
            return any(f"job {old.status.job_id} ended" in m and why in m for m in await self.said("JobEnded"))

        await self.yard.until(told)
        assert f"job {old.status.job_id} was requeued, not by Rollyard" in " ".join(await self.said("Requeued"))

    async def lose(self, node: str | None) -> None:
        """Kill the node's slurmd, which slurmctld notices soon."""
        await asyncio.to_thread(self.cluster.configure, "SlurmdTimeout=5")
        await asyncio.to_thread(self.cluster.stop_daemon, f"slurmd-{node}")

    async def regain(self, node: str | None) -> None:
        await asyncio.to_thread(self.cluster.start_daemon, f"slurmd-{node}")
        await asyncio.to_thread(self.cluster.configure, "SlurmdTimeout=60")

    async def slurm(self, *argv: str) -> str:
        return await asyncio.to_thread(self.cluster.run, *argv)


@contextlib.asynccontextmanager
async def field_on(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, lease_seconds: float = LEASE_SECONDS
) -> AsyncIterator[Field]:
    yard = Yard(tmp_path_factory.mktemp("yard"), cluster)
    yard.lease_seconds = lease_seconds
    shims = Shims(yard.folder / "shims", cluster.env["PATH"])
    yard.env["PATH"] = f"{shims.folder}:{cluster.env['PATH']}"
    field = Field(yard, cluster, shims)
    try:
        yard.start()
        await field.connect()
        yield field
    finally:
        await field.close()
        await end(yard)


@contextlib.asynccontextmanager
async def field_of(
    tmp_path_factory: pytest.TempPathFactory, lease_seconds: float = LEASE_SECONDS, **options: Any
) -> AsyncIterator[Field]:
    """A field on a cluster of its own."""
    cluster = await asyncio.to_thread(start_cluster, **options)
    try:
        async with field_on(cluster, tmp_path_factory, lease_seconds) as field:
            yield field
    finally:
        await asyncio.to_thread(stop_cluster, cluster)
