"""Asks node agents to pull the images of queued rollouts, before the rollouts come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rollyard.core.clock import Clock
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.image_reference import registry_host
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.store.rollout_store import RolloutStore
from rollyard.wire.node import PrefetchImages

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOK_AHEAD_ROLLOUTS = 500
"""The images of this many rollouts at the head of a pool's queue are known."""
MOST_PREFETCHED = 4
"""Greatest number of images that one node agent is asked to pull."""


class ImagePrefetcher:
    """Looks at the queues of all pools with node agents once a second."""

    def __init__(
        self,
        store: RolloutStore,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        pool: Callable[[PoolKey], Awaitable[RolloutPool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._node_agents = node_agents
        self._pool = pool

    async def run(self) -> None:
        """Look for ever."""
        while True:
            for pool in {agent.pool for agent in self._node_agents.all()}:
                try:
                    await self.prefetch(pool)
                except NotFound:
                    pass  # the pool is deleted, and its node agents will end too
                except RollyardError as error:
                    log.warning("the images of pool %s/%s were not prefetched this time: %s", *pool, error)
            await asyncio.sleep(LOOK_SECONDS)

    async def prefetch(self, key: PoolKey) -> None:
        """Tell the node agents of a pool what to pull, if that has changed. Raises NotFound."""
        node_agents = [agent for agent in self._node_agents.of_pool(key) if not agent.draining]
        default = (await self._pool(key)).spec.sandbox.default_image or ""
        found = await self._store.queued_images(key, default, self._clock.time(), LOOK_AHEAD_ROLLOUTS)
        images = {image: count for image, count in found.items() if registry_host(image)}
        nodes = [PrefetchNode(agent.ready_images, _slots(agent)) for agent in node_agents]
        for agent, chosen in zip(node_agents, assign(images, nodes), strict=True):
            if list(agent.prefetched_images) != chosen:
                agent.prefetched_images = chosen
                agent.send(PrefetchImages(images=chosen))


def _slots(agent: ConnectedNodeAgent) -> int:
    return sum(agent.widths.get(stage, 0) for stage in (Stage.INIT, Stage.RUN))


@dataclass(frozen=True, slots=True)
class PrefetchNode:
    ready: Collection[str]
    """Images that are complete on the node."""
    slots: int
    """Number of rollouts that the node agent can have in INIT and RUN."""


def assign(images: Mapping[str, int], nodes: Sequence[PrefetchNode]) -> list[list[str]]:
    """Return the images that each node should pull, in the order in which they will be needed.

    `images`: image -> number of queued rollouts, in the order of the queue. An image goes to as many nodes as its rollouts
    need. The nodes that have the image count first; of the others, those with the fewest images to pull are taken.
    """
    chosen: list[list[str]] = [[] for _ in nodes]
    for image, count in images.items():
        left = count - sum(node.slots for node in nodes if image in node.ready)
        for place in sorted(range(len(nodes)), key=lambda place: len(chosen[place])):
            if left <= 0 or len(chosen[place]) >= MOST_PREFETCHED:
                break
            if image not in nodes[place].ready:
                chosen[place].append(image)
                left -= max(1, nodes[place].slots)
    return chosen
