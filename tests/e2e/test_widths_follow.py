"""Inside an allocation: stage workers go where the queue is, and come back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from rollyard.client import AsyncClient
from rollyard.client.kubeconfig import load_context
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.task import Task
from tests.support import gated_tasks
from tests.support.yard import Yard, end

pytestmark = pytest.mark.slow(40)

INIT, RUN, EVAL = Stage
KEY = ObjectKey(kind="RolloutPool", namespace="default", name="demo")
PLACES = 12
ROLLOUTS = 20
POOL = {
    "replicas": 1,
    "sandbox": {"cpus": 1 / PLACES, "memory": "512M"},
    "stages": {
        "init": {"workers": {"min": 2, "max": 6}},
        "run": {"workers": {"min": 2, "max": 8}},
        "eval": {"workers": {"min": 2, "max": 6}},
    },
}
POLICY = {"replicas": 1}
AT_REST = {INIT: 2, RUN: 2, EVAL: 2}
OLD = """\
from rollyard.wire import node as wire
del wire._TO_NODE["resize"]
"""


class Gated:
    """A yard whose rollouts wait in each stage until its gate is opened."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.gates = yard.folder / "gates"
        self.gates.mkdir()

    def open(self, stage: Stage) -> None:
        (self.gates / stage).touch()

    async def submit(self, client: AsyncClient, id: str = "gated", n: int = ROLLOUTS) -> list[str]:
        task = Task.model_validate({"kind": "gated", "gates": str(self.gates)})
        agent = {"max_turns": 1}
        request = RolloutRequest.model_validate({"id": id, "pool": "demo", "task": task, "n": n, "agent": agent})
        return await client.submit([request])

    async def status(self, client: AsyncClient) -> tuple[dict[Stage, int], dict[Stage, int]]:
        """(in flight, widths)."""
        pool = await client.get(KEY)
        assert isinstance(pool, RolloutPool)
        stages = {Stage(name): found for name, found in pool.status.stages.items()}
        return {s: f.in_flight for s, f in stages.items()}, {s: f.width for s, f in stages.items()}

    async def widths(self, client: AsyncClient, expected: dict[Stage, int], in_flight: int | None = None) -> None:
        """Waits for them; on the way their sum is never more than the allocation has places."""
        deadline = time.monotonic() + 60
        while True:
            flying, widths = await self.status(client)
            assert sum(widths.values()) <= PLACES
            if widths == expected and in_flight in (None, sum(flying.values())):
                return
            assert time.monotonic() < deadline, f"{widths} instead of {expected}, in flight: {flying}"
            await asyncio.sleep(0.05)


@pytest.fixture
async def gated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gated]:
    monkeypatch.setattr("tests.support.yard.LEASE_SECONDS", 60.0)  # longer than the restart of a server takes
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.env["PYTHONPATH"] = gated_tasks.install(made.folder / "plugin")
    made.start()
    yield Gated(made)
    await end(made)


async def test_widths_go_from_stage_to_stage_with_the_work_and_come_back(gated: Gated) -> None:
    yard = gated.yard
    async with yard.client() as client:
        await yard.apply(client, policy=POLICY, demo=POOL)
        await yard.ready(client)
        await gated.widths(client, AT_REST)
        ids = await gated.submit(client)
        await gated.widths(client, {INIT: 6, RUN: 2, EVAL: 2}, in_flight=8)
        gated.open(INIT)
        await gated.widths(client, {INIT: 2, RUN: 8, EVAL: 2}, in_flight=10)
        (agent,) = yard.processes("node-agent")

        async def shown() -> bool:  # a rollout is in flight before its sandbox has started
            workers = {"init": "2.0", "run": "8.0", "eval": "2.0"}
            return len(yard.sandboxes()) == 10 and await stage_workers(yard) == workers

        await yard.until(shown)
    yard.kill()
    yard.start()
    async with yard.client() as client:
        await yard.ready(client)
        await gated.widths(client, {INIT: 2, RUN: 8, EVAL: 2}, in_flight=10)
        gated.open(RUN)
        await gated.widths(client, {INIT: 2, RUN: 2, EVAL: 6}, in_flight=ROLLOUTS)
        gated.open(EVAL)
        ended = await yard.gather(client, ids)
        assert {(t.reward, t.attempt) for t in ended} == {(1.0, 1)}
        await gated.widths(client, AT_REST, in_flight=0)
        assert yard.processes("node-agent") == [agent]


async def test_who_waits_for_a_stage_is_told_of_at_once(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the next heartbeat, which does not come here."""
    monkeypatch.setattr("tests.support.yard.LEASE_SECONDS", 3600.0)
    yard = gated.yard
    yard.stop()
    yard.start()
    async with yard.client() as client:
        stages = {name: {"workers": {"min": 1, "max": n}} for name, n in (("init", 1), ("run", 1), ("eval", 2))}
        await yard.apply(client, policy=POLICY, demo={**POOL, "stages": stages})
        await yard.ready(client)
        gated.open(INIT)
        gated.open(RUN)
        for n in (1, 2):
            ids = await gated.submit(client, f"r{n}", 1)
            await gated.widths(client, {INIT: 1, RUN: 1, EVAL: n}, in_flight=n)
        gated.open(EVAL)
        assert {t.reward for t in await yard.gather(client, ids)} == {1.0}


async def test_a_node_agent_that_cannot_resize_works_on_as_it_is(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OLD)
    yard = gated.yard
    async with yard.client() as client:
        setup = f"export PYTHONPATH={tmp_path}:$PYTHONPATH"
        await yard.apply(client, policy=POLICY, demo={**POOL, "allocation": {"setup": setup}})
        await yard.ready(client)
        ids = await gated.submit(client, n=6)
        await gated.widths(client, AT_REST, in_flight=4)
        for stage in Stage:
            gated.open(stage)
        assert {t.reward for t in await yard.gather(client, ids)} == {1.0}
        await gated.widths(client, AT_REST, in_flight=0)


async def stage_workers(yard: Yard) -> dict[str, str]:
    """Return the metrics of stage workers, by stage."""
    context = load_context(yard.data / "admin.kubeconfig")
    url, headers = f"{context.url}/metrics", {"Authorization": f"Bearer {context.token}"}
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers, ssl=context.tls()) as answer:
        return dict(re.findall(r'^rollyard_stage_workers\{stage="(\w+)"\} (\S+)', await answer.text(), re.M))
