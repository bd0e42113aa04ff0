"""Sends the desired widths of stages (numbers of stage workers) to connected node agents. `stage_widths` computes the
widths."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.errors import NotFound, RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import Stages
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.stage_widths import (
    History,
    StageLoad,
    initial,
    next_change_at,
    plan_widths,
    share_of_queue,
)
from rollyard.wire.node import Resize

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Shortest time between two rounds. Changes within this time are handled together."""
IDLE_SECONDS = 10.0


@dataclass(slots=True)
class _NodeAgentWidths:
    """Widths of one connection."""

    history: History
    requested: dict[Stage, int] | None = None
    """Widths that were last sent. The same widths are not sent again, even if an old node agent ignores the message."""


class StageResizer:
    """Resizes stages. The widths in a pool are computed again after each call of `wake`, and when a `RecentPeak`
    expires. If neither happens in any pool for IDLE_SECONDS, the widths in all pools are computed again."""

    def __init__(
        self,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        queued: Callable[[PoolKey], Awaitable[dict[Stage, int]]],
        stages: Callable[[PoolKey], Awaitable[Stages]],
    ) -> None:
        self._clock = clock
        self._node_agents = node_agents
        self._queued = queued
        self._stages = stages
        self._sized: dict[PoolKey, dict[ConnectedNodeAgent, _NodeAgentWidths]] = {}
        self._due: set[PoolKey] = set()
        self._waker = Waker()

    def wake(self, pool: PoolKey) -> None:
        self._due.add(pool)
        self._waker.wake()

    async def run(self) -> None:
        """Resize for ever."""
        while True:
            await self._waker.pause(IDLE_SECONDS)
            # If no pool is due, the widths of all pools are computed, because an earlier attempt may have failed.
            due = self._due or {a.pool for a in self._node_agents.all()}
            self._due = set()
            for pool in due:
                try:
                    await self._resize(pool)
                except NotFound:
                    self._sized.pop(pool, None)  # the pool is deleted, and its node agents will end too
                except RollyardError as error:
                    log.warning("the stage widths in pool %s/%s were not changed this time: %s", *pool, error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _resize(self, key: PoolKey) -> None:
        known = self._sized.pop(key, {})
        node_agents = [a for a in self._node_agents.of_pool(key) if a.widths and a.capacity]
        if not node_agents:
            return
        stages, queued = await self._stages(key), await self._queued(key)
        now, taking = self._clock.monotonic(), sum(not a.draining for a in node_agents)
        expected = share_of_queue(queued, taking)
        sized = self._sized[key] = {a: known.get(a) or _NodeAgentWidths(initial(a.widths)) for a in node_agents}
        for agent, mine in sized.items():
            load = StageLoad(agent.in_hand, {} if agent.draining else expected)
            mine.history, widths = plan_widths(mine.history, load, stages, agent.capacity, now)
            if widths is not None and widths != mine.requested:
                mine.requested = widths
                agent.send(Resize(widths={stage.value: n for stage, n in widths.items()}, places=agent.capacity))
        again = [at for mine in sized.values() if (at := next_change_at(mine.history)) is not None]
        if again:
            asyncio.get_running_loop().call_later(max(0.0, min(again) - now) + 0.001, self.wake, key)
