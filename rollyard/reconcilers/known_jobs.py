"""Jobs that squeue should show. Each job has the time of the last heartbeat from its process, if there was one, and
the time at which its last submit was answered or failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollyard.controller.informer import Informer
from rollyard.core.clock import Clock
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.values.job_state import JobState
from rollyard.reconcilers.missing_jobs import KnownJob
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.routing.endpoint_registry import EndpointRegistry


class KnownJobs:
    """Jobs of the allocations that have not ended. `ListingFeed` compares each listing with these jobs."""

    def __init__(
        self,
        allocations: Informer[Allocation],
        node_agents: ConnectedNodeAgents,
        endpoints: EndpointRegistry,
        answered: Mapping[str, float],
        owner: Callable[[Allocation], str],
        clock: Clock,
    ) -> None:
        """`answered`: uid of an allocation -> Unix seconds at which its last submit was answered or failed. `owner`:
        returns the key by which the queue shows an allocation's job."""
        self._allocations = allocations
        self._node_agents = node_agents
        self._endpoints = endpoints
        self._answered = answered
        self._owner = owner
        self._clock = clock

    def list(self) -> list[KnownJob]:
        """Return one job for each allocation that has a job and has not ended."""
        return [
            self._known(a, a.status.job_id)
            for a in self._allocations.list()
            if a.status.job_id and not a.status.is_ended
        ]

    def _known(self, allocation: Allocation, job_id: str) -> KnownJob:
        """Return the allocation's job. A heartbeat counts only if its process is bound to this job."""
        status, uid = allocation.status, allocation.metadata.uid
        endpoint, agent = self._endpoints.of_allocation(uid), self._node_agents.of_allocation(uid)
        heard = endpoint.heard_at if endpoint is not None else agent.heard_at if agent is not None else None
        bound = status.binding is not None and status.binding.job_id == job_id
        now = self._clock.time()
        return KnownJob(
            job_id,
            is_running=status.job_state == JobState.RUNNING,
            restart_count=status.restart_count,
            heard_at=now - (self._clock.monotonic() - heard) if bound and heard is not None else None,
            since=self._answered.get(uid, 0.0),
            leaving=allocation.metadata.deletion_timestamp is not None,
            intended_at=status.intended_at.timestamp() if status.intended_at is not None else None,
            owner=self._owner(allocation),
            was_seen=status.job_state is not None or status.binding is not None,
        )
