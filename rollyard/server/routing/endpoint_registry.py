"""The registry of model servers: registration, health by heartbeats, ejection, admission, and served weights.

The registry is in memory. After a restart of the server, engines register again within seconds. Before that, sessions get
no endpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from rollyard.core.aio import Signal
from rollyard.core.clock import Clock
from rollyard.core.telemetry import ENDPOINTS_EJECTED, ENDPOINTS_READY
from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.weights import WeightsStatus
from rollyard.server.routing.admission import EndpointLoad, admission
from rollyard.server.routing.endpoint_rates import UNKNOWN, append, rates
from rollyard.server.routing.endpoint_state import (
    SLOW_START_SECONDS,
    EndpointState,
    published,
    why_not_ready,
)
from rollyard.server.routing.health import EJECTED, EndpointTrust, with_complaint, with_probe
from rollyard.server.routing.session_index import SessionIndex
from rollyard.server.routing.staleness import ServedVersions
from rollyard.server.weights.engine_target import EndpointWeights, why_not_routable
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import EngineHeartbeat, WeightsTarget
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
STALE_SECONDS = 4 * HEARTBEAT_SECONDS


class EndpointRegistry:
    """All endpoints of all InferencePools, by id."""

    def __init__(self, clock: Clock, sessions: SessionIndex) -> None:
        self.sessions = sessions
        self._clock = clock
        self._began = clock.monotonic()
        self._states: dict[str, EndpointState] = {}
        self._specs: dict[PoolKey, InferencePoolSpec] = {}
        self._weights: dict[PoolKey, WeightsStatus] = {}
        self._proofs: dict[tuple[PoolKey, str, str | None], ToolProof] = {}
        """(pool, folder of the template, named parser) -> last proof of a node agent or the gateway."""
        self.endpoint_updated = Signal[EndpointState]()
        """Signal: an endpoint's state was set. For a removed endpoint the state is not `ready`."""
        self.endpoint_changed = Signal[EndpointState]()
        """Signal: an endpoint was added or removed, or a field that `published` returns has another value."""
        self.weights_changed = Signal[PoolKey]()
        """Signal: a pool's current version or its list of versions changed."""
        self.capacity_freed = Signal[PoolKey]()
        """Signal: an endpoint of this pool has a higher limit of sessions than before."""
        self.token_renewed = Signal[str]()
        """Signal: callers of this endpoint need its new token."""
        self.endpoint_suspected = Signal[str]()
        """Signal: there is a complaint about this endpoint, so a probe may be due."""
        self.externals_changed = Signal[PoolKey]()
        """Signal: the list of external servers in a pool's spec changed."""

    # reports of engines and probes

    def register(
        self,
        pool: PoolKey,
        identity: Identity,
        endpoint: Endpoint,
        model: str | None = None,
        weights: WeightsStatus | None = None,
        *,
        capacity: float = 1.0,
    ) -> None:
        """Register an engine. It gets work after a heartbeat reports that it is healthy and has the right weights.

        `model`: folder of the model for which the engine's allocation was made. `weights`: weights of the pool, used if
        the registry does not know them yet. `capacity`: relative to the other endpoints of the pool.
        """
        if weights is not None:
            self._weights.setdefault(pool, weights)
        old, uid = self._states.get(endpoint.id), identity.uid
        fresh = EndpointState(
            self._with_spec(pool, endpoint),
            pool,
            uid,
            identity.allocation,
            heard_at=self._clock.monotonic(),
            node=identity.node,
            capacity=capacity,
            model=model,
        )
        if old is not None and old.uid == uid:
            fresh = replace(fresh, drain=old.drain)
            if old.endpoint.url == endpoint.url:  # the process is the same, so it keeps its trust
                fresh = replace(fresh, trust=old.trust, admission=old.admission, warm_at=old.warm_at)
        self._put(fresh)

    def heartbeat(self, id: str, beat: EngineHeartbeat) -> bool:
        """Store an engine's report. Return False if the engine has to register first."""
        state = self._states.get(id)
        if state is None or state.endpoint.url != beat.url:
            return False
        load, history = (
            EndpointLoad(self.sessions.count(id), beat.running, beat.waiting, beat.kv_usage),
            append(state.history, beat.load),
        )
        state = replace(
            state,
            endpoint=evolve(state.endpoint, weights_version=beat.weights.version, context=beat.context),
            healthy=beat.ready and bool(beat.weights.version),
            engine_reason=beat.reason,
            running=beat.running,
            waiting=beat.waiting,
            kv_usage=beat.kv_usage,
            history=history,
            rates=rates(history),
            heard_at=self._clock.monotonic(),
            admission=admission(load, state.admission),
            weights=beat.weights,
            tools=beat.tools,
            has_reported=True,
            acknowledged_order=state.last_order,
        )
        self._put(replace(state, why_not_routable=self._denial(state)))
        return True

    def renew_token(self, id: str, token: str) -> None:
        """Give this token to callers from now on. The engine accepts it already."""
        state = self._states.get(id)
        if state is not None and state.endpoint.token != token:
            self._put(replace(state, endpoint=evolve(state.endpoint, token=token)))
            self.token_renewed.emit(id)

    def add_external(self, pool: PoolKey, endpoint: Endpoint, capacity: float) -> None:
        """Add an external server from the pool's spec. A known server keeps its health and trust, and stops
        draining."""
        old, endpoint = self._states.get(endpoint.id), self._with_spec(pool, endpoint)
        state = old or EndpointState(endpoint, pool, "")
        self._put(replace(state, endpoint=endpoint, capacity=capacity, drain=False))

    def remove_unlisted(self, pool: PoolKey, keep: set[str]) -> None:
        """Remove external servers of the pool that are not in `keep`. Servers with sessions are only drained.

        Call this again later: only a call removes a drained server whose sessions have ended.
        """
        for id, state in list(self._states.items()):
            if state.pool == pool and not state.uid and id not in keep:
                if self.sessions.count(id):
                    self._put(replace(state, drain=True))
                else:
                    self._drop(id)

    def complain(self, id: str, voter: str, why: str) -> None:
        """Record a complaint about an endpoint. A probe or further complaints decide whether the endpoint is ejected."""
        state = self._states.get(id)
        if state is not None:
            log.warning("endpoint %s: complaint of %s: %s", id, voter, why)
            self._set_trust(state, with_complaint(state.trust, voter, why, self._clock.monotonic()))
            self.endpoint_suspected.emit(id)

    def probed(self, id: str, why: Reason | None, dialect: Literal["openai", "sglang"] = "openai") -> None:
        """Record the result of a probe. `why`: reason of the failure; None on success."""
        state = self._states.get(id)
        if state is not None:
            if why is None:
                state = replace(state, endpoint=evolve(state.endpoint, dialect=dialect))
            self._set_trust(state, with_probe(state.trust, why, self._clock.monotonic()))

    def suspected_endpoints(self) -> list[EndpointState]:
        """Endpoints to probe now. An engine that reports that it is not ready is probed when it is ready again: otherwise,
        each failed probe while it starts would make its ejection longer."""
        now = self._clock.monotonic()
        return [s for s in self._states.values() if s.trust.probe_due(now) and (s.healthy or not s.uid)]

    def expire(self) -> None:
        """Stop giving new work to silent endpoints, until they report that they are healthy."""
        horizon = self._clock.monotonic() - STALE_SECONDS
        for state in list(self._states.values()):
            # Ejected endpoints and endpoints with other weights are included: a silent endpoint must not get new work
            # after a successful probe or a new target.
            if state.healthy and state.uid and state.heard_at < horizon:
                silence = Reason(EJECTED, f"no heartbeat for {STALE_SECONDS:g} s")
                log.warning("endpoint %s: %s", state.endpoint.id, silence)
                silent = replace(state, waiting=None, kv_usage=None, history=(), rates=UNKNOWN)
                self._put(replace(silent, healthy=False, engine_reason=silence))

    def note_proof(self, tokenizer: str, proof: ToolProof, pools: Collection[PoolKey] | None = None) -> None:
        """Record a proof of tool calls by a node agent or the gateway, which have loaded the template in this folder.

        `pools`: the proof counts for these pools; None: for all with this folder.
        """
        for state in list(self._states.values()):
            key = (state.pool, tokenizer, proof.parser)
            counts = state.endpoint.tokenizer == tokenizer and (pools is None or state.pool in pools)
            if counts and self._proofs.get(key) != proof:
                self._proofs[key] = proof
                self.endpoint_changed.emit(state)

    # calls of the reconcilers

    def drain(self, uid: str) -> None:
        for state in [s for s in self._states.values() if uid and s.uid == uid]:
            self._put(replace(state, drain=True))

    def forget(self, uid: str) -> None:
        """Remove the endpoint of an ended allocation."""
        for id in [i for i, s in self._states.items() if uid and s.uid == uid]:
            self._drop(id)

    def follow_spec(self, pool: PoolKey, spec: InferencePoolSpec) -> None:
        """Take over the pool's present spec."""
        before = self._specs.get(pool)
        self._specs[pool] = spec
        parser = spec.model.tool_parser
        if before is None or (before.patience, before.model.tool_parser) != (spec.patience, parser):
            for state in self.of_pool(pool):
                self._put(replace(state, endpoint=self._with_spec(pool, state.endpoint)))
        if spec.engine.external != (before.engine.external if before is not None else None):
            self.externals_changed.emit(pool)

    def follow_weights(self, pool: PoolKey, weights: WeightsStatus | None) -> None:
        """Take over the weights in the pool's status; None if the pool is deleted."""
        if weights is None:
            self._weights.pop(pool, None)
            self._proofs = {key: proof for key, proof in self._proofs.items() if key[0] != pool}
            return
        before, self._weights[pool] = self._weights.get(pool), weights
        for state in [s for s in self._states.values() if s.pool == pool and s.uid]:
            denied = self._denial(state)
            if denied != state.why_not_routable:
                self._put(replace(state, why_not_routable=denied))
        if before is None or (before.current, before.history) != (weights.current, weights.history):
            self.weights_changed.emit(pool)

    def note_order(self, id: str, order: WeightsTarget | None) -> None:
        """Record the target that was sent in the answer to a heartbeat. The engine's next report is about this target."""
        state = self._states.get(id)
        if state is not None:
            self._states[id] = replace(state, last_order=order)

    # queries

    def get(self, id: str) -> EndpointState | None:
        return self._states.get(id)

    def of_allocation(self, uid: str) -> EndpointState | None:
        return next((s for s in self._states.values() if uid and s.uid == uid), None)

    def all(self) -> list[EndpointState]:
        return sorted(self._states.values(), key=lambda s: s.endpoint.id)

    def of_pool(self, pool: PoolKey) -> list[EndpointState]:
        return sorted((s for s in self._states.values() if s.pool == pool), key=lambda s: s.endpoint.id)

    def proofs(self, pool: PoolKey) -> list[ToolProof]:
        """Return the proofs of tool calls for the pool's present parser and template."""
        spec = self._specs.get(pool)
        if spec is None:
            return []
        parser, tokenizer = spec.model.tool_parser, spec.model.tokenizer or spec.model.path
        # engines of an earlier spec have another template
        engines = [
            s for s in self.of_pool(pool) if s.endpoint.tokenizer == tokenizer and s.model in (None, spec.model.path)
        ]
        found = [*(state.tools for state in engines), self._proofs.get((pool, tokenizer, parser))]
        return [proof for proof in found if proof is not None and proof.parser == parser]

    def weights(self, pool: PoolKey) -> WeightsStatus:
        return self._weights.get(pool, WeightsStatus())

    def served_versions(self, pool: PoolKey) -> ServedVersions:
        """Return the pool's weights, the version of each endpoint, and the versions that new work can get."""
        there = [s for s in self._states.values() if s.pool == pool]
        ready = frozenset(s.endpoint.weights_version for s in there if s.is_accepting)
        return ServedVersions(self.weights(pool), {s.endpoint.id: s.endpoint.weights_version for s in there}, ready)

    def count_with_room(self, pool: PoolKey) -> tuple[int, int]:
        """Return (number of endpoints that take new work, how many of them have room for one more session)."""
        found = [s for s in self.of_pool(pool) if s.is_accepting]
        return len(found), sum(s.admission.admits(self.sessions.count(s.endpoint.id)) for s in found)

    def weights_report(self, uid: str, id: str) -> EndpointWeights:
        """Last report on weights from this allocation's endpoint. If the endpoint is silent, `is_heard` is false."""
        state, now = self.of_allocation(uid), self._clock.monotonic()
        if state is None:
            return EndpointWeights(id, known_for=now - self._began)
        heard = state.has_reported and now - state.heard_at < STALE_SECONDS
        return state.weights_report(heard, now - (self._began if heard else state.heard_at))

    # inside

    def _denial(self, state: EndpointState) -> Reason | None:
        weights = self._weights.get(state.pool)
        if weights is None or state.model not in (None, weights.model):
            return None  # the allocation has an earlier spec, and keeps its weights until its successor is ready
        return why_not_routable(weights, state.weights_report(True))

    def _with_spec(self, pool: PoolKey, endpoint: Endpoint) -> Endpoint:
        spec = self._specs.get(pool)
        if spec is None:
            return endpoint
        return evolve(endpoint, patience=spec.patience, tool_parser=spec.model.tool_parser)

    def _set_trust(self, state: EndpointState, trust: EndpointTrust) -> None:
        """Set the trust. This may eject the endpoint, or end its ejection."""
        if trust.ejected and not state.trust.ejected:
            log.warning("endpoint %s ejected: %s", state.endpoint.id, trust.why)
            ENDPOINTS_EJECTED.inc()
        healthy = state.healthy or not (state.uid or trust.ejected)  # an external server has no heartbeat
        self._put(replace(state, trust=trust, healthy=healthy))

    def _put(self, state: EndpointState) -> None:
        id, now = state.endpoint.id, self._clock.monotonic()
        reason = why_not_ready(state)
        state = replace(state, ready=reason is None, reason=reason)
        old = self._states.get(id)
        if state.ready and not (old is not None and old.ready) and self._is_cold(state, old):
            state = replace(state, warm_at=now + SLOW_START_SECONDS)
        self._states[id] = state
        self.endpoint_updated.emit(state)
        if old is None or published(old) != published(state):
            self._notify_changes(state)
        elif (old.admission.limit or 0) < (state.admission.limit or 0):
            self.capacity_freed.emit(state.pool)

    def _is_cold(self, state: EndpointState, old: EndpointState | None) -> bool:
        """Whether the cache is probably empty: the endpoint has no session, or was ejected.

        After a restart of the server an endpoint is new in the registry, but it has sessions and so a warm cache.
        """
        return self.sessions.count(state.endpoint.id) == 0 or (old is not None and old.trust.ejected)

    def _drop(self, id: str) -> None:
        state = self._states.pop(id)
        self.endpoint_updated.emit(replace(state, ready=False))
        self._notify_changes(state)

    def _notify_changes(self, state: EndpointState) -> None:
        ENDPOINTS_READY.set(sum(s.is_accepting for s in self._states.values()))
        self.endpoint_changed.emit(state)
