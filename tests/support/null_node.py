"""A node agent that answers at once, beside a real server: rollouts without sandboxes, engines or tokens to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from rollyard.client import AsyncClient
from rollyard.client.node_connection import NodeConnection
from rollyard.client.server_link import ServerLink
from rollyard.core.errors import Fenced
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.node.result_uploads import ResultUploads
from rollyard.trajectory import Outcome, Segment
from rollyard.wire.node import CapacityRequest, Grant, Heartbeat, Hello, Lease, LeaseRef, ToNode
from tests.support.yard import Yard

ROOM = 32
BEAT_SECONDS = 0.2
Reward = Callable[[Lease], float]


@asynccontextmanager
async def null_pool(
    yard: Yard,
    client: AsyncClient,
    reward: Reward,
    monkeypatch: pytest.MonkeyPatch,
    seconds: Callable[[Lease], float] = lambda lease: 0.0,
) -> AsyncIterator[None]:
    """A RolloutPool `null`, whose job only sleeps: this process plays its node agent, also over restarts of the server.
    `seconds`: how long a rollout takes."""
    async with _model_server() as url:
        external = {
            "model": {"path": "/", "servedName": "policy"},
            "engine": {"external": {"endpoints": [{"url": url}]}},
        }
        await client.apply(InferencePool.model_validate({"metadata": {"name": "policy"}, "spec": external}))
        allocation = {"setup": "exec sleep 3600", "timeLimit": "01:00:00"}
        spec = {"replicas": 1, "allocation": allocation, "inference": {"policy": "policy"}}
        await client.apply(RolloutPool.model_validate({"metadata": {"name": "null"}, "spec": spec}))

        async def bound() -> Allocation | None:
            found = [a for a in await yard.allocations(client) if a.status.job_id]
            return found[0] if found else None

        allocated: Allocation = await yard.until(bound)
        monkeypatch.setenv("SLURM_JOB_ID", str(allocated.status.job_id))
        link = ServerLink.open(yard.data / "allocations" / f"default.{allocated.metadata.name}")
        async with link.session() as http:
            node = NullNode(link, http, reward, seconds)
            task = asyncio.create_task(node.run())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, *node.tasks, return_exceptions=True)


class NullNode:
    def __init__(
        self, link: ServerLink, http: aiohttp.ClientSession, reward: Reward, seconds: Callable[[Lease], float]
    ) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._reward, self._seconds = reward, seconds
        self._held: dict[str, LeaseRef] = {}
        self._identity = link.identity()
        self._uploads = ResultUploads(link, http)
        self._line = NodeConnection(link, http)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stay_connected())
            group.create_task(self._beat())

    async def _stay_connected(self) -> None:
        while True:
            opened = await self._line.open(self._hello)
            self._start(self._ask())
            await self._line.receive(opened, self._hear)

    async def _beat(self) -> None:
        while True:
            await self._line.send(
                Heartbeat(held=list(self._held.values()), widths={"INIT": ROOM // 2, "RUN": ROOM // 2})
            )
            await self._ask()
            await asyncio.sleep(BEAT_SECONDS)

    async def _ask(self) -> None:
        await self._line.send(CapacityRequest(init=ROOM - len(self._held), kinds=["math"]))

    def _hello(self) -> Hello:
        return Hello(identity=self._identity, held=list(self._held.values()))

    async def _hear(self, message: ToNode) -> None:
        if isinstance(message, Grant):
            for lease in message.leases:
                self._start(self._answer(lease))

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, lease: Lease) -> None:
        ref = LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence, stage=Stage.INIT)
        self._held[lease.id] = ref
        await asyncio.sleep(self._seconds(lease))
        segment = Segment(
            token_ids=[1, 2], loss_mask=[0, 1], logprobs=[None, -0.5], weights_version=[None, "v1"], prompt_length=1
        )
        outcome = Outcome(status=Status.COMPLETED, reward=self._reward(lease), segments=[segment])
        try:
            await self._uploads.result(ref, outcome)
        except Fenced:
            pass  # given to another lease meanwhile
        finally:
            self._held.pop(lease.id, None)
        await self._ask()


@asynccontextmanager
async def _model_server() -> AsyncIterator[str]:
    """Run a server that answers probes, because rollouts are leased only while an endpoint is ready; yields its URL."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    async def complete(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": "x", "token_ids": [7]}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", complete)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
