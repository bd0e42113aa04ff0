"""Present load of a RolloutPool's stages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import StageStatus
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent


def stage_load(
    queued: Mapping[Stage, int], in_flight: Mapping[Stage, int], node_agents: Iterable[ConnectedNodeAgent]
) -> dict[str, StageStatus]:
    """Put a pool's queue, leases and stage workers together, by stage. `node_agents`: the pool's node agents."""
    widths = [agent.widths for agent in node_agents]
    return {
        stage.value: StageStatus(
            queued=queued.get(stage, 0),
            in_flight=in_flight.get(stage, 0),
            width=sum(width.get(stage, 0) for width in widths),
        )
        for stage in Stage
    }
