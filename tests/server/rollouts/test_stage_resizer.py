"""The server's side of widths: who is told what, and when, over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.core.aio import running
from rollyard.core.clock import SystemClock
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.task import Task
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.store import Store
from rollyard.wire.node import CapacityRequest, LeaseRef, Resize, ToNode
from tests.support import make
from tests.support.until import until

KEY = PoolKey("default", "swe")
AT_REST = {"INIT": 2, "RUN": 4, "EVAL": 2}
SPEC = {
    "replicas": 2,
    "allocation": {"cpusPerTask": 4},
    "stages": {
        "init": {"workers": {"min": 2, "max": 8}},
        "run": {"workers": {"min": 4, "max": 8}},
        "eval": {"workers": {"min": 2, "max": 8}},
    },
}


class Server:
    """A server of which the resizer runs, and its RolloutPool."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.node_agents = parts, parts.node_agents

    def connect(self, uid: str, *, places: int = 16) -> tuple[ConnectedNodeAgent, list[dict[str, int]]]:
        """A node agent, and what it is asked for."""
        asked: list[dict[str, int]] = []

        def hear(message: ToNode) -> None:
            if isinstance(message, Resize):
                asked.append(message.widths)

        agent = make.agent(KEY, uid, hear, capacity=places)
        self.node_agents.connect(agent)
        self.node_agents.heartbeat(agent, [], AT_REST)
        return agent, asked

    async def submit(self, n: int) -> None:
        await self.parts.rollouts.submit("default", [RolloutRequest(pool=KEY[1], task=Task(kind="math"), n=n)])


def held(stage: Stage, n: int) -> list[LeaseRef]:
    return [LeaseRef(namespace="default", id=f"{stage}-{i}", fence=1, stage=stage) for i in range(n)]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    store = await Store.open(tmp_path, SystemClock())
    await store.objects.create(make.rollout_pool(KEY.name, **SPEC))
    parts = Parts(store, LocalDriver(tmp_path / "slurm"), tmp_path, SystemClock())
    async with running(parts.resizer.run()):
        yield Server(parts)
    await parts.close()
    await store.close()


async def test_a_queue_is_shared_by_those_that_may_take_of_it(server: Server) -> None:
    _, first = server.connect("u1")
    second, second_asked = server.connect("u2")
    third, third_asked = server.connect("u3")
    await until(lambda: first == second_asked == third_asked == [AT_REST])
    server.node_agents.drain(third.identity.uid, SystemClock().time() + 30)
    await server.submit(8)
    await until(lambda: first[1:] == second_asked[1:] == [{"INIT": 4, "RUN": 4, "EVAL": 2}])
    server.node_agents.heartbeat(second, held(Stage.EVAL, 9), AT_REST)
    await until(lambda: second_asked[2:] == [{"INIT": 4, "RUN": 4, "EVAL": 8}])
    assert third_asked == [AT_REST], "it takes nothing new"


async def test_widths_that_nothing_needs_are_taken_back_without_a_further_word(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.server.rollouts.stage_widths.HOLD_SECONDS", 0.3)
    agent, asked = server.connect("u1")
    server.node_agents.heartbeat(agent, held(Stage.RUN, 6), AT_REST)
    await until(lambda: asked[-1:] == [{"INIT": 2, "RUN": 6, "EVAL": 2}])
    server.node_agents.heartbeat(agent, [], {"INIT": 2, "RUN": 6, "EVAL": 2})
    await until(lambda: asked[-1] == AT_REST)


async def test_one_that_does_not_answer_is_told_once(server: Server) -> None:
    agent, asked = server.connect("u1")
    server.node_agents.heartbeat(agent, held(Stage.EVAL, 5), AT_REST)
    await until(lambda: asked[-1:] == [{"INIT": 2, "RUN": 4, "EVAL": 5}])
    told = len(asked)
    for uid in ("u2", "u3", "u4"):
        _, other = server.connect(uid)
        await until(lambda: bool(other))  # noqa: B023
    assert len(asked) == told


async def test_an_allocation_of_unknown_size_is_left_alone(server: Server) -> None:
    _, unknown = server.connect("u1", places=0)
    _, known = server.connect("u2")
    await until(lambda: known == [AT_REST])
    assert unknown == []


def test_room_is_not_given_away_twice() -> None:
    """A word said before the last grant arrived counts the same room again."""
    node_agents = ConnectedNodeAgents(SystemClock())
    agent = make.agent(KEY)
    node_agents.connect(agent)
    node_agents.request_capacity(agent, CapacityRequest(init=4, grants=0))
    agent.free_init, agent.grants = 0, 1  # as the dispatcher does
    node_agents.request_capacity(agent, CapacityRequest(init=4, grants=0))
    assert agent.free_init == 0
    node_agents.request_capacity(agent, CapacityRequest(init=1, grants=1))
    assert agent.free_init == 1
    node_agents.request_capacity(agent, CapacityRequest(init=3))
    assert agent.free_init == 3, "one that does not count is believed"
