"""Hints to node agents that a rollout should move to another endpoint.

After a hint, the node agent requests another endpoint before the next turn, or in the middle of a turn if the present
endpoint is out (ejected, silent or unhealthy). The server chooses and records an endpoint only at this request. So
nothing changes if an old node agent ignores the hint.
"""

from __future__ import annotations

from rollyard.core.clock import Clock
from rollyard.core.telemetry import REPINS
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.leases import Leases
from rollyard.wire.node import LeaseRef, RechooseEndpoint

REPEAT_SECONDS = 2.0
"""Seconds between two hints to a lease on an endpoint that is out. The time is short, because the node agent drops
a hint for a rollout that has not begun to sample, and the hint must then be sent again."""
SETTLED_SECONDS = 60.0
"""Seconds between two hints to a lease in all other cases. A session that has moved has just lost its cache, so it
should stay for a while. A session that has not moved needs no second hint: the node agent keeps the first hint until
the session's next turn."""


class MoveHints:
    def __init__(self, clock: Clock, node_agents: ConnectedNodeAgents, leases: Leases) -> None:
        self._clock = clock
        self._node_agents = node_agents
        self._leases = leases

    def send(self, key: RolloutKey, endpoint: str, urgent: bool) -> bool:
        """Send a hint for each role that uses the endpoint. Return False, and send nothing, if no role uses it, if the
        rollout has no connected holder, or if the last hint to its lease is too recent. `urgent`: the endpoint is out."""
        lease, now = self._leases.get(key), self._clock.monotonic()
        agent = self._node_agents.get(lease.holder) if lease is not None else None
        if lease is None or agent is None or now - lease.hinted_at < (REPEAT_SECONDS if urgent else SETTLED_SECONDS):
            return False
        roles = [role for role, id in lease.endpoints.items() if id == endpoint]
        if not roles:
            return False
        lease.hinted_at = now
        ref = LeaseRef(namespace=key.namespace, id=key.id, fence=lease.fence, stage=lease.stage)
        for role in roles:
            agent.send(RechooseEndpoint(lease=ref, role=role, now=urgent))
        REPINS.inc()
        return True
