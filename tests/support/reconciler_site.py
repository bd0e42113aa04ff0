"""The reconcilers as the server runs them, on a real store and real jobs of this machine; the jobs only sleep.

Node agents are peers of the tested code: tests connect them by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollyard.core.clock import SystemClock
from rollyard.core.errors import SlurmUnreachable
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Condition, ObjectKey, evolve, get_condition
from rollyard.kinds.event import Event
from rollyard.kinds.failure_table import CANCELLED
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.step import Granted, step
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.base import BatchScript, Job, JobIds, JobListing
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.base import RolloutFilter
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.wire.base import Identity
from tests.support.until import until

WAIT_SECONDS = 60.0


class Line:
    """The connection to a real driver, which a test can cut or slow down."""

    name = "line"

    def __init__(self, driver: LocalDriver) -> None:
        self.driver = driver
        self.down = False
        self.answers = asyncio.Event()
        """Look-ups wait for this event."""
        self.answers.set()
        self.lose_answers = 0
        """Number of submits that succeed but whose answer is lost."""
        self.printed: list[str] = []
        """Ids that the next submit answers instead of the true ones."""
        self.complaint = ""
        """Slurm's message beside the ids of a submit."""
        self.submitted = asyncio.Event()
        """Successful submits answer only after this event."""
        self.submitted.set()
        self.submits = 0
        self.stale: JobListing | None = None
        """The answer of every look-up while it is set."""
        self.accounted: dict[str, Job] | None = {}
        """Content of accounting; None while it does not answer."""
        self.asked = 0
        """Number of queries to accounting."""

    async def list_jobs(self) -> JobListing:
        await self.answers.wait()
        self._check()
        return self.stale or await self.driver.list_jobs()

    async def submit(self, script: BatchScript) -> list[str]:
        self._check()
        self.submits += 1
        ids = JobIds(await self.driver.submit(script))
        if self.printed:
            ids, self.printed = JobIds(self.printed), []
        ids.complaint = self.complaint
        await self.submitted.wait()
        if self.lose_answers:
            self.lose_answers -= 1
            raise SlurmUnreachable("the connection broke")
        return ids

    async def accounting(self, ids: Any) -> dict[str, Job]:
        self.asked += 1
        if self.accounted is None:
            raise SlurmUnreachable("slurmdbd: Connection refused")
        return {id: self.accounted[id] for id in ids if id in self.accounted}

    async def accounts(self, ids: Any) -> Any:
        return await self.driver.accounts(ids)

    async def site(self) -> Any:
        return await self.driver.site()

    async def cancel(self, ids: Any, signal: str | None = None) -> None:
        self._check()
        await self.driver.cancel(ids, signal)

    async def close(self) -> None:
        await self.driver.close()

    def _check(self) -> None:
        if self.down:
            raise SlurmUnreachable("Unable to contact slurm controller")


class Site:
    """One data folder; the manager runs between `start` and `stop`."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.line = Line(LocalDriver(folder / "slurm", kill_wait=1.0))
        self._run: asyncio.Task[None] | None = None
        self._new_process()

    def _new_process(self) -> None:
        """Make the objects that a server has in memory right after its start."""
        parts = self.parts = Parts(self.store, self.line, self.folder, SystemClock(), lease_seconds=60.0)
        self.node_agents, self.leases, self.endpoints = parts.node_agents, parts.leases, parts.endpoints
        self.rollouts, self.manager, self.workspace = parts.rollouts, parts.manager, parts.workspace

    async def start(self) -> None:
        await self.rollouts.recover()
        self._run = asyncio.create_task(self.manager.run())

    async def stop(self) -> None:
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._run
        await self.parts.close()

    async def restart(self) -> None:
        await self.stop()
        self._new_process()
        await self.start()

    async def end(self, *ids: str) -> None:
        """End these jobs, or all, regardless of their owner."""
        async with asyncio.timeout(WAIT_SECONDS):
            while live := [j.id for j in await self.live() if not ids or j.id in ids]:
                await self.line.driver.cancel(live)
                await asyncio.sleep(0.05)

    # declare objects

    async def apply(
        self, *, replicas: int | None = 2, setup: str = "exec sleep 600", name: str = "swe", **spec: Any
    ) -> RolloutPool:
        pool = {"metadata": {"name": name}, "spec": {"replicas": replicas, "allocation": {"setup": setup}, **spec}}
        made = await self.store.objects.create(RolloutPool.model_validate(pool))
        assert isinstance(made, RolloutPool)
        return made

    async def apply_inference(self, name: str = "policy") -> None:
        """Apply an InferencePool with external servers: a RolloutPool without one is not ready."""
        spec = {"model": {"path": "/models/tiny"}, "engine": {"external": {}}}
        await self.store.objects.create(InferencePool.model_validate({"metadata": {"name": name}, "spec": spec}))

    async def change(self, name: str = "swe", **spec: Any) -> None:
        pool = await self.pool(name)
        given = pool.spec.model_dump(by_alias=True, exclude_none=True) | spec
        new = evolve(
            pool, spec=type(pool.spec).model_validate(given), metadata=evolve(pool.metadata, resource_version="")
        )
        await self.store.objects.update(new, "spec")

    async def delete(self, kind: str, name: str) -> None:
        await self.store.objects.delete(ObjectKey(kind=kind, namespace="default", name=name))

    # peers

    async def connect(self, allocation: Allocation) -> ConnectedNodeAgent:
        status = allocation.status
        identity = Identity(
            allocation=allocation.metadata.name,
            namespace="default",
            uid=allocation.metadata.uid,
            job_id=status.job_id or "",
            instance="i",
            node=status.node,
        )
        agent = ConnectedNodeAgent(
            identity, PoolKey("default", allocation.spec.pool.name), lambda message: None, expel=lambda: None
        )
        self.node_agents.connect(agent)
        return agent

    async def connect_again(self, *node_agents: ConnectedNodeAgent) -> None:
        """Connect again, as node agents do when the server is back."""
        for agent in node_agents:
            agent.draining = False
            self.node_agents.connect(agent)

    async def submit(self, count: int, pool: str = "swe") -> None:
        """Submit rollouts for which there is no node agent."""
        await self.rollouts.submit("default", [RolloutRequest(pool=pool, task=Task(kind="null")) for _ in range(count)])

    async def cancel_queued(self, pool: str = "swe") -> None:
        await self.rollouts.cancel_queued(PoolKey("default", pool), CANCELLED, "not wanted any more")

    async def lease(self, agent: ConnectedNodeAgent) -> None:
        """Lease a rollout to this node agent."""
        request = RolloutRequest(pool=agent.pool[1], task=Task(kind="null"))
        ((record, _),) = await self.rollouts.submit("default", [request])

        def grant(tx: Transaction) -> Any:
            held = tx.get("default", record.id)
            assert held is not None
            after, _ = step(held, Granted(SystemClock().time(), agent.holder, agent.identity.node, {}))
            return tx.put(after)

        self.leases.add(await self.store.rollouts.transact(grant))

    async def finish(self, agent: ConnectedNodeAgent) -> None:
        for record in await self.rollouts.find(RolloutFilter(namespace="default", pool=agent.pool[1])):
            if record.holder == agent.holder:
                await self.rollouts.cancel("default", record.id)

    # observe

    def now(self) -> float:
        return SystemClock().time()

    async def pool(self, name: str = "swe") -> RolloutPool:
        found = await self.store.objects.get(ObjectKey(kind="RolloutPool", namespace="default", name=name))
        assert isinstance(found, RolloutPool)
        return found

    async def condition(self, type: str, name: str = "swe") -> Condition | None:
        return get_condition((await self.pool(name)).status.conditions, type)

    async def allocations(self) -> list[Allocation]:
        found, _ = await self.store.objects.list_objects("Allocation")
        return [a for a in found if isinstance(a, Allocation)]

    async def events(self, reason: str) -> list[Event]:
        found, _ = await self.store.objects.list_objects("Event")
        return [e for e in found if isinstance(e, Event) and e.reason == reason]

    async def live(self) -> list[Job]:
        """List the jobs that really run, from the machine's processes."""
        jobs = (await self.line.driver.list_jobs()).jobs.values()
        return sorted((j for j in jobs if not j.state.ended), key=lambda j: [int(part) for part in j.id.split("_")])

    async def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        async def seen() -> str:
            pools = [p.status for p in (await self.store.objects.list_objects("RolloutPool"))[0]]
            return f"{what or holds}: {pools} {[a.status for a in await self.allocations()]} {await self.live()}"

        return await until(holds, WAIT_SECONDS, seen=seen)

    async def running(self, count: int, *, newest: int | None = None) -> list[Allocation]:
        """Wait until so many jobs run, all recorded as running; return their allocations.

        `newest`: also wait until the allocation with this index is among them.
        """

        active: list[Allocation] = []

        async def holds() -> bool:
            active[:] = [a for a in await self.allocations() if a.status.job_state == "RUNNING"]
            if newest is not None and newest not in {a.spec.index for a in active}:
                return False
            return {j.id for j in await self.live()} == {a.status.job_id for a in active} and len(active) == count

        await self.until(holds, f"{count} running")
        return active
