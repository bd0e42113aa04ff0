"""Hints to node agents that a rollout should move to another endpoint.

The rollout asks for another endpoint between two turns, or at once if its own is out. Only then the server chooses and
records the endpoint. So with a node agent that does not know the message the rollout stays at its endpoint.
"""

from __future__ import annotations

from rollyard.core.clock import Clock
from rollyard.core.telemetry import REPINS
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.rollouts.connected_agents import ConnectedAgents
from rollyard.server.rollouts.leases import Leases
from rollyard.wire.node import LeaseRef, RechooseEndpoint

REPEAT_SECONDS = 2.0
"""Seconds between two hints to a lease on an endpoint that is out. At the first hint it may not have begun to sample."""
SETTLED_SECONDS = 60.0
"""Seconds between two other hints. A moved session has just lost its cache; one that must leave already has its hint."""


class MoveHints:
    def __init__(self, clock: Clock, agents: ConnectedAgents, leases: Leases) -> None:
        self._clock = clock
        self._agents = agents
        self._leases = leases

    def send(self, key: RolloutKey, endpoint: str, urgent: bool) -> bool:
        """Send a hint, unless the lease has just had one; return whether it was sent."""
        lease, now = self._leases.get(key), self._clock.monotonic()
        agent = self._agents.get(lease.holder) if lease is not None else None
        if lease is None or agent is None or now - lease.hinted_at < (REPEAT_SECONDS if urgent else SETTLED_SECONDS):
            return False
        lease.hinted_at = now
        ref = LeaseRef(namespace=key.namespace, id=key.id, fence=lease.fence, stage=lease.stage)
        for role in (role for role, id in lease.endpoints.items() if id == endpoint):
            agent.send(RechooseEndpoint(lease=ref, role=role, now=urgent))
        REPINS.inc()
        return True
