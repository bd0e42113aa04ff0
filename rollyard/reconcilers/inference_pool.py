"""Observer of InferencePools: reads the sessions, load and weights of their endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rollyard.core.clock import Clock, as_exact_datetime
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ConditionUpdate, Reason
from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.weights import WeightsStatus
from rollyard.reconcilers.conditions import tool_calls
from rollyard.reconcilers.demand import LoadReport, inference_metrics, sessions
from rollyard.reconcilers.plan import Member
from rollyard.reconcilers.pool_observation import PoolObservation
from rollyard.reconcilers.status_metrics import StatusMetrics, StatusMetricsCache
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.routing.endpoint_metrics import endpoint_status
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.server.weights.engine_target import WEIGHTS_UPDATING, EndpointWeights, has_weights, why_not_routable
from rollyard.server.weights.pool_update import WeightsStep, advance


class InferencePoolObserver:
    def __init__(
        self,
        endpoints: EndpointRegistry,
        rollouts: RolloutService,
        rollout_pools: Callable[[], list[RolloutPool]],
        outside_demand: Callable[[PoolKey], int],
        clock: Clock,
    ) -> None:
        """`outside_demand`: function that returns the number of open and requested sessions of external agents in a pool."""
        self._endpoints = endpoints
        self._clock = clock
        self._coarse = StatusMetricsCache(clock)
        self._rollouts = rollouts
        self._rollout_pools = rollout_pools
        self._outside_demand = outside_demand

    async def observe(self, pool: Pool, allocations: Sequence[Allocation]) -> PoolObservation:
        assert isinstance(pool, InferencePool)
        bounds = pool.spec.autoscaling
        self._endpoints.follow_spec(pool.pool_key, pool.spec)
        live = 0
        if bounds is not None:
            live = await requested_sessions(pool, self._rollout_pools(), self._rollouts, self._outside_demand)
        if (operation := pool.status.weights.operation) is not None and operation.is_running:
            # Only an endpoint shows whether the weights can be served, and the trainer waits for that.
            live = max(live, 1)
        # No wait from here on, so that the endpoints and the conditions about them are of one moment.
        held = self._endpoints.sessions.counts()
        states = self._endpoints.of_pool(pool.pool_key)
        by_uid = {state.uid: state for state in states if state.uid}
        members = [self._member(a, by_uid.get(a.metadata.uid), held) for a in allocations]
        counted = [
            by_uid[m.allocation.metadata.uid] for m in members if m.active and m.allocation.metadata.uid in by_uid
        ]
        serving = [self._weights_report(m.allocation) for m in members if _is_in_update(m, pool)]
        step, coarse = self._weights(pool, serving), self._coarse.of(pool.pool_key, states)
        return PoolObservation(
            members=members,
            metrics=inference_metrics(bounds, live, _reports(members, by_uid)) if bounds is not None else [],
            status_update={**_status_update(coarse, states, held), "weights": step.weights},
            problem=_pool_problem(pool, states),
            why_not_ready=_why_not_ready(counted),
            why_not_admitting=_why_not_admitting(coarse, states, held),
            conditions=[
                *_weights_conditions(pool, step.weights, serving),
                tool_calls(self._endpoints.proofs(pool.pool_key)),
            ],
            events=list(step.events),
        )

    def _weights(self, pool: InferencePool, serving: Sequence[EndpointWeights]) -> WeightsStep:
        if pool.spec.engine.external is not None or pool.metadata.deletion_timestamp is not None:
            return WeightsStep(pool.status.weights)
        return advance(pool.status.weights, pool.spec.model.path, serving, as_exact_datetime(self._clock.time()))

    def _weights_report(self, allocation: Allocation) -> EndpointWeights:
        meta = allocation.metadata
        return self._endpoints.weights_report(meta.uid, f"{meta.namespace}/{meta.name}")

    def _member(self, allocation: Allocation, state: EndpointState | None, held: Mapping[str, int]) -> Member:
        """Return a member of the pool. The load is the number of sessions, or of running requests if that is greater.
        Sessions count, because an engine holds a rollout's cache also between two turns."""
        live = held.get(f"{allocation.metadata.namespace}/{allocation.metadata.name}", 0)
        if state is None:
            return Member(allocation, False, live, silent=allocation.status.ready_at is not None)
        return Member(allocation, state.ready, max(live, state.running), not self._weights_report(allocation).is_heard)

    async def on_deleted(self, pool: Pool) -> None:
        """Do nothing. Running rollouts continue while endpoints drain. Queued rollouts wait for a new pool of this name."""


async def requested_sessions(
    pool: InferencePool,
    users: Iterable[RolloutPool],
    rollouts: RolloutService,
    outside_demand: Callable[[PoolKey], int],
) -> int:
    """Number of present and requested sessions: those of external agents, and those of RolloutPools that use this pool.

    A rollout counts once for each role that its RolloutPool maps to this pool in `spec.inference`.
    """
    total = outside_demand(pool.pool_key)
    for user in users:
        if user.metadata.namespace != pool.metadata.namespace:
            continue
        for role in (role for role, name in user.spec.inference.items() if name == pool.metadata.name):
            demand = await rollouts.model_demand(user.pool_key, user.spec.sandbox.default_image, role)
            total += sessions(user.spec, *demand)
    return total


def _pool_problem(pool: InferencePool, states: Sequence[EndpointState]) -> Reason | None:
    if pool.spec.engine.external is None or any(s.ready for s in states):
        return None
    known = "; ".join(f"{s.endpoint.url}: {s.reason}" for s in states)
    return Reason("NoEndpointReady", known or "no endpoint has been probed yet")


def _why_not_ready(states: Sequence[EndpointState]) -> Reason | None:
    """Reason why engines are not ready: the first reason that has a message, or else a count; None if all are ready."""
    waiting = [(s.endpoint.id, s.reason) for s in states if s.reason is not None]
    for id, reason in waiting:
        if reason.message:
            return Reason(reason.word, f"{id}: {reason.message}")
    if updating := sum(reason == WEIGHTS_UPDATING for _, reason in waiting):
        return Reason(WEIGHTS_UPDATING.word, f"{updating} of {len(states)} engines are loading new weights")
    return Reason("Loading", f"{len(waiting)} of {len(states)} engines: {waiting[0][1]}") if waiting else None


def _status_update(coarse: StatusMetrics, states: Sequence[EndpointState], held: Mapping[str, int]) -> dict[str, Any]:
    silent = EndpointMetrics()
    shown = [
        endpoint_status(s, held, coarse.endpoints.get(s.endpoint.id, silent), coarse.limits.get(s.endpoint.id))
        for s in states
    ]
    return {"endpoints": shown, "load": coarse.total}


def _why_not_admitting(
    coarse: StatusMetrics, states: Sequence[EndpointState], held: Mapping[str, int]
) -> Reason | None:
    """Reason why no endpoint takes one more session; None if an endpoint does."""
    taking = [s for s in states if s.is_accepting]
    if not taking:
        return Reason("NoEndpoint", "no endpoint is in service")
    if any(s.admission.admits(held.get(s.endpoint.id, 0)) for s in taking):
        return None
    return Reason("EndpointsFull", "; ".join(f"{s.endpoint.id}: {coarse.limits[s.endpoint.id].why}" for s in taking))


def _is_in_update(member: Member, pool: InferencePool) -> bool:
    """Whether a member takes part in weights updates: its process has registered and serves the spec's model. The member
    need not be ready."""
    allocation = member.allocation
    return (
        member.active
        and allocation.status.binding is not None
        and allocation.spec.model in (None, pool.spec.model.path)
    )


def _weights_conditions(
    pool: InferencePool, weights: WeightsStatus, serving: Sequence[EndpointWeights]
) -> list[ConditionUpdate]:
    """Whether every endpoint serves the current weights, with the reason if not."""
    operation, current = weights.operation, weights.current
    if operation is not None and operation.is_running:
        if operation.message:
            also = (
                "; the pool is suspended"
                if pool.spec.suspend
                else "; spec.replicas is 0"
                if pool.spec.replicas == 0
                else ""
            )
            message = f"{operation.target.version} {operation.message}{also}"
            return [ConditionUpdate("WeightsCurrent", False, "NoEndpoint", message)]
        message = f"{operation.done} of {operation.total} endpoints serve {operation.target.version}"
        return [ConditionUpdate("WeightsCurrent", False, "Updating", message)]
    failed = operation is not None and operation.phase == "Failed"
    failure = f"the last update failed: {operation.message}" if operation is not None and failed else ""
    if current is None:
        if failure:
            return [ConditionUpdate("WeightsCurrent", False, "UpdateFailed", failure)]
        message = f"no endpoint has reported the checksum of {weights.model} yet"
        return [ConditionUpdate("WeightsCurrent", False, "Unknown", message)] if weights.history else []
    last = f"; {failure}" if failure else ""
    have = sum(has_weights(s, current) for s in serving)
    message = f"{have} of {len(serving)} endpoints serve {current.version}"
    if have == len(serving):
        return [ConditionUpdate("WeightsCurrent", True, "Current", f"{message}{last}")]
    without = next(s for s in serving if not has_weights(s, current))
    why = why_not_routable(weights, without)
    return [ConditionUpdate("WeightsCurrent", False, "EndpointsWithout", f"{message}; {without.id}: {why}{last}")]


def _reports(members: Sequence[Member], states: Mapping[str, EndpointState]) -> list[LoadReport]:
    """Return one report for each active member that has ever been ready. The report of a silent server is empty."""
    heard = [states.get(m.allocation.metadata.uid) for m in members if m.active and m.allocation.status.ready_at]
    return [LoadReport() if state is None else LoadReport(state.waiting, state.kv_usage) for state in heard]
