"""What is an InferencePool's own: endpoints and the sessions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rollyard.inference.endpoints import Endpoints, EndpointState
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pools import EndpointStatus, InferencePool, Pool, RolloutPool
from rollyard.reconcilers.demand import Report, inference_metrics, sessions
from rollyard.reconcilers.plan import Member
from rollyard.reconcilers.trade import Look
from rollyard.rollouts.service import Rollouts


class InferenceTrade:
    def __init__(
        self, endpoints: Endpoints, rollouts: Rollouts, rollout_pools: Callable[[], list[RolloutPool]]
    ) -> None:
        self._endpoints = endpoints
        self._rollouts = rollouts
        self._rollout_pools = rollout_pools

    async def look(self, pool: Pool, allocations: Sequence[Allocation]) -> Look:
        assert isinstance(pool, InferencePool)
        meta = pool.metadata
        held = await self._rollouts.sessions()
        bounds = pool.spec.autoscaling
        live = await self._sessions_asked(pool) if bounds is not None else 0
        self._endpoints.follow_spec((meta.namespace, meta.name), pool.spec)
        states = self._endpoints.of_pool((meta.namespace, meta.name))
        by_uid = {state.uid: state for state in states if state.uid}
        members = [_member(a, by_uid.get(a.metadata.uid), held) for a in allocations]
        return Look(
            members=members,
            metrics=inference_metrics(bounds, live, _reports(members, by_uid)) if bounds is not None else [],
            details={"endpoints": [_status(state, held) for state in states]},
            problem=self._problem(pool, states),
            full=_full(states, held),
        )

    async def _sessions_asked(self, pool: InferencePool) -> int:
        """Held and asked for, by the rollouts of all RolloutPools that use this pool; one for each role it plays there."""
        meta, total = pool.metadata, 0
        for user in self._rollout_pools():
            roles = list(user.spec.inference.values()).count(meta.name)
            if roles and user.metadata.namespace == meta.namespace:
                queued = await self._rollouts.queued(meta.namespace, user.metadata.name)
                in_flight = self._rollouts.leases.in_flight(meta.namespace, user.metadata.name)
                total += roles * sessions(user.spec, queued, in_flight)
        return total

    @staticmethod
    def _problem(pool: InferencePool, states: Sequence[EndpointState]) -> tuple[str, str] | None:
        """What the engines say of themselves."""
        if pool.spec.engine.external is not None and not any(s.ready for s in states):
            return "NoEndpointReady", "; ".join(f"{s.endpoint.url}: {s.reason}" for s in states) or "not probed yet"
        complaints = [s for s in states if not s.ready and ":" in s.reason]
        if complaints:
            word, _, rest = complaints[0].reason.partition(":")
            return word, f"{complaints[0].endpoint.id}: {rest.strip()}"
        loading = [s for s in states if not s.ready]
        if loading:
            return "Loading", f"{len(loading)} of {len(states)} engines: {loading[0].reason}"
        return None

    async def deleted(self, pool: Pool) -> None:
        """Rollouts in hand go on while their endpoint drains; the queue waits for another pool of this name."""


def _full(states: Sequence[EndpointState], held: Mapping[str, int]) -> str:
    """Why no endpoint that could take one more session does; empty when one does, or none could at all."""
    taking = [s for s in states if s.takes]
    if any(s.admission.takes(held.get(s.endpoint.id, 0)) for s in taking):
        return ""
    return "; ".join(f"{s.endpoint.id}: {s.admission.why}" for s in taking)


def _member(allocation: Allocation, state: EndpointState | None, held: Mapping[str, int]) -> Member:
    """By sessions and not by requests: between two turns an engine is idle, and the rollout's cache is on it."""
    live = held.get(f"{allocation.metadata.namespace}/{allocation.metadata.name}", 0)
    return Member(allocation, state is not None and state.ready, max(live, state.running if state is not None else 0))


def _reports(members: Sequence[Member], states: Mapping[str, EndpointState]) -> list[Report]:
    """One for each that counts and has once been ready: it has something to say, whether or not it is heard now."""
    heard = [states.get(m.allocation.metadata.uid) for m in members if m.active and m.allocation.status.ready_at]
    return [Report() if state is None else Report(state.waiting, state.kv_usage) for state in heard]


def _status(state: EndpointState, held: Mapping[str, int]) -> EndpointStatus:
    return EndpointStatus(
        id=state.endpoint.id,
        url=state.endpoint.url,
        sessions=held.get(state.endpoint.id, 0),
        weights_version=state.endpoint.weights_version,
        ready=state.ready,
        reason=state.reason,
        capacity=state.capacity,
        draining=state.drain,
        max_sessions=state.admission.limit,
        full=state.admission.why,
    )
