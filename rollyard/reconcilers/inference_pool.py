"""What is an InferencePool's own: endpoints and the sessions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollyard.clock import Clock
from rollyard.inference.endpoints import Endpoints, EndpointState, PoolKey
from rollyard.inference.figures import status
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.figures import Figures
from rollyard.kinds.pools import InferencePool, Pool, RolloutPool
from rollyard.reconcilers.coarse import CoarseFigures
from rollyard.reconcilers.demand import Report, inference_metrics, sessions
from rollyard.reconcilers.plan import Member
from rollyard.reconcilers.trade import Look
from rollyard.rollouts.service import Rollouts


class InferenceTrade:
    def __init__(
        self, endpoints: Endpoints, rollouts: Rollouts, rollout_pools: Callable[[], list[RolloutPool]], clock: Clock
    ) -> None:
        self._endpoints = endpoints
        self._coarse = CoarseFigures(clock)
        self._rollouts = rollouts
        self._rollout_pools = rollout_pools

    async def look(self, pool: Pool, allocations: Sequence[Allocation]) -> Look:
        assert isinstance(pool, InferencePool)
        meta = pool.metadata
        held = await self._rollouts.sessions()
        bounds = pool.spec.autoscaling
        live = await self._sessions_asked(pool) if bounds is not None else 0
        states = self._endpoints.of_pool((meta.namespace, meta.name))
        by_uid = {state.uid: state for state in states if state.uid}
        members = [_member(a, by_uid.get(a.metadata.uid), held) for a in allocations]
        return Look(
            members=members,
            metrics=inference_metrics(bounds, live, _reports(members, by_uid)) if bounds is not None else [],
            details=self._details((meta.namespace, meta.name), states, held),
            problem=self._problem(pool, states),
        )

    def _details(self, key: PoolKey, states: Sequence[EndpointState], held: Mapping[str, int]) -> dict[str, Any]:
        coarse, silent = self._coarse.of(key, states), Figures()
        shown = [status(state, held, coarse.endpoints.get(state.endpoint.id, silent)) for state in states]
        return {"endpoints": shown, "load": coarse.total}

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


def _member(allocation: Allocation, state: EndpointState | None, held: Mapping[str, int]) -> Member:
    """By sessions and not by requests: between two turns an engine is idle, and the rollout's cache is on it."""
    live = held.get(f"{allocation.metadata.namespace}/{allocation.metadata.name}", 0)
    return Member(allocation, state is not None and state.ready, max(live, state.running if state is not None else 0))


def _reports(members: Sequence[Member], states: Mapping[str, EndpointState]) -> list[Report]:
    """One for each that counts and has once been ready: it has something to say, whether or not it is heard now."""
    heard = [states.get(m.allocation.metadata.uid) for m in members if m.active and m.allocation.status.ready_at]
    return [Report() if state is None else Report(state.waiting, state.kv_usage) for state in heard]
