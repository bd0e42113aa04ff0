"""The keeper: time, slots and pools reach the batches; what changes nothing costs no write."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.base import ObjectKey
from rollyard.kinds.batch import BatchKey, BatchStatus
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.store.writer import Writer
from tests.server.batches.conftest import Site
from tests.support import make


async def slots(site: Site, id: str) -> int:
    found = await site.store.batches.batch_with_series(BatchKey("default", id))
    assert found is not None
    return found[0].slots


def connect(site: Site, **widths: int) -> ConnectedNodeAgent:
    agent = ConnectedNodeAgent(make.identity(), make_key(), lambda message: None, expel=lambda: None)
    agent.widths = {Stage[name]: width for name, width in widths.items()}
    site.parts.node_agents.connect(agent)
    return agent


def make_key() -> PoolKey:

    return PoolKey("default", "swe")


async def test_running_batches_share_the_slots_of_their_pool(site: Site) -> None:
    await site.declare_pool()
    await site.dataset("d", 50)
    keeper, agent = site.parts.batch_keeper, connect(site, INIT=2, RUN=10)
    await site.create(id="a", dataset={"name": "d"}, target=5)
    await keeper.tick()
    assert await slots(site, "a") == 12
    await site.create(id="b", dataset={"name": "d"}, target=5)
    await keeper.tick()
    assert (await slots(site, "a"), await slots(site, "b")) == (6, 6)
    await site.create(id="c", dataset={"name": "d"}, target=5, weight=4)
    await keeper.tick()
    assert [await slots(site, id) for id in "abc"] == [2, 2, 8]
    site.parts.node_agents.disconnect(agent)
    await keeper.tick()
    view = await site.view("a")
    assert view.waiting == "no node agent of pool swe is connected; see `rollyard describe rolloutpool swe`"


async def test_a_batch_ends_by_its_deadline_and_with_its_pool(site: Site) -> None:
    await site.declare_pool()
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=5, deadline_seconds=10)
    await site.create(id="b", dataset={"name": "d"}, target=5)
    await site.parts.batch_keeper.tick()
    assert (await site.view("a")).status is BatchStatus.RUNNING
    site.clock.turn(10)
    await site.parts.batch_keeper.tick()
    assert (await site.view("a")).status is BatchStatus.EXPIRED
    await site.store.objects.delete(ObjectKey(kind="RolloutPool", namespace="default", name="swe"))
    await site.parts.batch_keeper.tick()
    assert (await site.view("b")).status is BatchStatus.CANCELLED


async def test_a_tick_that_changes_nothing_writes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.declare_pool()
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=5)
    await site.parts.batch_keeper.tick()
    calls: list[Any] = []
    call = Writer.call

    async def counted(self: Writer, change: Any) -> Any:
        calls.append(change)
        return await call(self, change)

    monkeypatch.setattr(Writer, "call", counted)
    await site.parts.batch_keeper.tick()
    assert not calls
