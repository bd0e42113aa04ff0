"""A node agent and a server in one process: what is agreed on at the first welcome holds until the job ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from rollyard.client.server_link import ServerLink
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout import AgentSpec, Budgets, Sampling
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.node import agent as node_agent
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent as Connected
from rollyard.server_process.main import RollyardServer, ServeOptions
from rollyard.tasks import installed_handlers
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.files import AllocationFile
from rollyard.wire.node import Grant, Lease

CORES, PER_CORE = 2, 8
SPEC = {"replicas": 1, "allocation": {"cpusPerTask": CORES}, "sandbox": {"cpus": 1 / PER_CORE, "memory": "64M"}}


class Yard:
    """A data folder that one server after another opens, none of which begins anything by itself; one allocation."""

    def __init__(self, folder: Path) -> None:
        self.data, self.job = folder / "data", folder / "job"
        self.job.mkdir()

    @contextlib.asynccontextmanager
    async def server(self) -> AsyncIterator[RollyardServer]:
        async with contextlib.AsyncExitStack() as stack:
            yield await RollyardServer.start(ServeOptions(self.data, cluster="local"), stack)

    async def allocate(self, server: RollyardServer) -> ServerLink:
        """Create the pool and its allocation; return the link that the batch job would find."""
        pool = RolloutPool.model_validate({"metadata": {"name": "swe"}, "spec": SPEC})
        spec = {
            "pool": {
                "kind": "RolloutPool",
                "name": "swe",
                "uid": (await server.store.objects.create(pool)).metadata.uid,
            },
            "index": 0,
            "template_hash": "h",
            "template": pool.spec.allocation,
        }
        made = await server.store.objects.create(
            Allocation.model_validate({"metadata": {"name": "swe-0"}, "spec": spec})
        )
        meta = made.metadata
        told = AllocationFile(
            allocation=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            pool="swe",
            endpoint_file=str(self.data / "endpoint.json"),
            ca_file=str(self.data / "ca.pem"),
            scratch=str(self.job),
        )
        (self.job / "allocation.json").write_text(told.model_dump_json())
        (self.job / "token").write_text(server.parts.signer.issue(Role.NODE, meta.uid))
        return ServerLink.open(self.job)


async def change_sandbox(server: RollyardServer) -> None:
    """Now four times as many would fit."""
    pool = await server.store.objects.get(ObjectKey(kind="RolloutPool", namespace="default", name="swe"))
    assert isinstance(pool, RolloutPool)
    spec = evolve(pool.spec, sandbox=SandboxTemplate(cpus=1 / PER_CORE / 4, memory="64M"))
    await server.store.objects.update(evolve(pool, spec=spec), "spec")


async def connected(server: RollyardServer) -> Connected:
    async with asyncio.timeout(60):
        while not (found := [agent for agent in server.parts.node_agents.all() if agent.widths]):
            await asyncio.sleep(0.01)
    return found[0]


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("ROLLYARD_CACHE", os.environ.get("ROLLYARD_CACHE", str(Path.home() / ".cache" / "rollyard")))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Yard(tmp_path)


@contextlib.asynccontextmanager
async def at_work(link: ServerLink) -> AsyncIterator[asyncio.Event]:
    """Run a node agent until the block ends, or the event is set that it yields."""
    stop, handlers = asyncio.Event(), installed_handlers.load_handlers()
    async with link.session() as http:
        running = asyncio.create_task(node_agent.run(link, http, http, handlers, stop))
        try:
            yield stop
        finally:
            stop.set()
            await running
            await handlers.close()


async def test_a_changed_sandbox_makes_no_more_places_in_what_works_with_the_old_one(yard: Yard) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with yard.server() as first:
            await stack.enter_async_context(at_work(await yard.allocate(first)))
            assert (await connected(first)).capacity == CORES * PER_CORE
            await change_sandbox(first)
        async with yard.server() as second:
            assert (await connected(second)).capacity == CORES * PER_CORE
            await stack.aclose()


class NewerSpec(AgentSpec):
    some_day: int = 0


async def test_what_asks_for_something_newer_is_handed_back_and_the_line_goes_on(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"task": Task(kind="math"), "agent": NewerSpec(some_day=1), "sampling": Sampling(), "budgets": Budgets()}
    lease = Lease.model_validate(
        {"namespace": "default", "id": "a", "fence": 1, "attempt": 1, "sample_index": 0, **asked}
    )
    async with yard.server() as server, at_work(await yard.allocate(server)):
        agent = await connected(server)
        async with asyncio.timeout(60):
            await wants(agent)
            agent.free_init = 0
            agent.grants += 1
            agent.send(Grant(leases=[lease]))
            await wants(agent)
            while "hand-back of a was not stored" not in caplog.text:  # the server never had it
                await asyncio.sleep(0.01)
    assert "a lease has fields that this node agent does not know" in caplog.text


async def test_a_lease_that_comes_while_the_node_agent_stops_is_handed_back(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"task": Task(kind="math"), "agent": AgentSpec(), "sampling": Sampling(), "budgets": Budgets()}
    lease = Lease.model_validate(
        {"namespace": "default", "id": "a", "fence": 1, "attempt": 1, "sample_index": 0, **asked}
    )
    async with yard.server() as server:
        async with at_work(await yard.allocate(server)) as stop:
            agent = await connected(server)
            async with asyncio.timeout(60):
                await wants(agent)
            agent.grants += 1
            agent.send(Grant(leases=[lease]))
            stop.set()
        async with asyncio.timeout(60):
            while "hand-back of a was not stored" not in caplog.text:  # the server never had it
                await asyncio.sleep(0.01)
        assert agent.free_init == 0, "it asked for no more"


async def wants(agent: Connected) -> None:
    while not agent.free_init:
        await asyncio.sleep(0.01)


async def test_a_plug_in_that_does_not_import_takes_away_its_kind_and_not_the_node_agent(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*entry_points(group="rollyard.tasks"), EntryPoint("quiz", "no_such_package:Quiz", "rollyard.tasks")]
    monkeypatch.setattr(installed_handlers, "entry_points", lambda group: given)
    async with yard.server() as server, at_work(await yard.allocate(server)):
        agent = await connected(server)
        assert {"code", "math"} <= agent.kinds
        assert "quiz" not in agent.kinds
        assert agent.failed_kinds["quiz"].startswith("ModuleNotFoundError: No module named 'no_such_package'")
