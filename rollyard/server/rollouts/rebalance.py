"""Hints to node agents to move live sessions to another endpoint: from one that is out, drains, or has too many.

The rollout asks between two turns, or at once where its endpoint is out; only then the server chooses and records the
endpoint. So nothing is counted before it is true, and a node agent that does not know the message stays where it is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.telemetry import REPINS
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.rollouts.connected_agents import ConnectedAgents
from rollyard.server.rollouts.leases import Leases, LiveLease
from rollyard.wire.node import LeaseRef, RechooseEndpoint

log = logging.getLogger(__name__)

ROUND_SECONDS, URGENT_ROUND_SECONDS = 5.0, 1.0
"""Seconds between two rounds; while an endpoint with sessions is out, the shorter time."""
REPEAT_SECONDS = 2.0
"""Seconds between two hints to a lease on an endpoint that is out: at the first it may not have begun to sample."""
SETTLED_SECONDS = 60.0
"""Seconds between two hints to one lease: a moved session has paid for its move, and one that drains has its hint."""


class MovesSource(Protocol):
    """Source of the sessions that should move; `routing.endpoint_registry.EndpointRegistry` is one."""

    def to_move(self) -> dict[str, int]: ...

    def stranded(self) -> dict[str, bool]: ...


class Rebalancer:
    """Sends hints from time to time, and at once when an endpoint has changed."""

    def __init__(self, clock: Clock, agents: ConnectedAgents, leases: Leases, skew: MovesSource) -> None:
        self._clock = clock
        self._agents = agents
        self._leases = leases
        self._skew = skew
        self._waker = Waker()
        self._stuck: set[str] = set()
        """Endpoints that are out, whose sessions wait because no other is ready."""

    def wake(self) -> None:
        self._waker.wake()

    async def run(self) -> None:
        """Send hints for ever."""
        while True:
            await self._waker.pause(URGENT_ROUND_SECONDS if self._skew.stranded() else ROUND_SECONDS)
            self.send_hints()
            await asyncio.sleep(0.1)  # endpoints that change together are handled together

    def send_hints(self) -> None:
        """One round of hints."""
        stranded = self._skew.stranded()
        for endpoint, elsewhere in stranded.items():
            if elsewhere:
                self._hurry_all(endpoint)
            elif endpoint not in self._stuck and (waiting := len(self._leases.sessions_on(endpoint))):
                log.warning(
                    "%d sessions wait on endpoint %s, which is down: no other endpoint is ready", waiting, endpoint
                )
        self._stuck = {endpoint for endpoint, elsewhere in stranded.items() if not elsewhere}
        for endpoint, excess in self._skew.to_move().items():
            hinted = 0
            for key, lease in self._leases.sessions_on(endpoint):
                if hinted >= excess:
                    break
                hinted += self._send_hint(endpoint, key, lease)
            if hinted:
                log.info(
                    "told %d of the sessions on endpoint %s to move to another one with their next turn",
                    hinted,
                    endpoint,
                )

    def _send_hint(self, endpoint: str, key: RolloutKey, lease: LiveLease, *, hurry: bool = False) -> bool:
        now, agent = self._clock.monotonic(), self._agents.get(lease.holder)
        if agent is None or now - lease.hinted_at < (REPEAT_SECONDS if hurry else SETTLED_SECONDS):
            return False
        lease.hinted_at = now
        ref = LeaseRef(namespace=key.namespace, id=key.id, fence=lease.fence, stage=lease.stage)
        for role in (role for role, id in lease.endpoints.items() if id == endpoint):
            agent.send(RechooseEndpoint(lease=ref, role=role, now=hurry))
        REPINS.inc()
        return True

    def _hurry_all(self, endpoint: str) -> None:
        hinted = sum(
            self._send_hint(endpoint, key, lease, hurry=True) for key, lease in self._leases.sessions_on(endpoint)
        )
        if hinted:
            log.info("endpoint %s is down: told %d of its sessions to move at once", endpoint, hinted)
