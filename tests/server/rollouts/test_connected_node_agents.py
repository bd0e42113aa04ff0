"""Sums over the node agents that are connected."""

from __future__ import annotations

from rollyard.kinds.pool import PoolKey
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.wire.node import ImageStorage
from tests.support import make
from tests.support.manual_clock import ManualClock

SWE, MATH = PoolKey("default", "swe"), PoolKey("default", "math")


def test_the_cache_of_a_node_counts_once_and_the_evictions_of_each_node_agent() -> None:
    clock = ManualClock()
    agents = ConnectedNodeAgents(clock)
    for name, node, pool, images in (
        ("a", "n1", SWE, 3),
        ("b", "n1", MATH, 4),
        ("c", "n2", SWE, 5),
        ("late", "n2", SWE, 0),
    ):
        agent = make.agent(pool, name)
        agent.identity = make.identity(name, node=node)
        agents.connect(agent)
        if images:  # one that has just connected has reported nothing
            clock.turn(1.0)
            agents.heartbeat(agent, [], {})
            agent.images = ImageStorage(
                images=images, layers=images, bytes=10 * images, evicted_layers=1, evicted_bytes=7
            )
    found = agents.image_storage()
    assert (found.images, found.bytes, found.evicted_layers, found.evicted_bytes) == (9, 90, 3, 21)
    found = agents.image_storage(SWE)
    assert (found.images, found.bytes, found.evicted_layers, found.evicted_bytes) == (8, 80, 2, 14)
