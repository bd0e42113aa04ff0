"""The registry of model servers: who registered, who is healthy by its own heartbeat, who was ejected.

It lives in memory: engines register again within seconds of a server's restart, and until then nothing is handed out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rollyard.clock import Clock
from rollyard.inference.heap import EndpointHeap
from rollyard.inference.load import UNKNOWN, History, Rates, extended, rates
from rollyard.inference.orders import Serving, denial
from rollyard.kinds.weights import WeightsStatus
from rollyard.kinds.wire import Endpoint, EngineHeartbeat, Identity, WeightsOrder
from rollyard.telemetry import ENDPOINTS_READY

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
STALE_SECONDS = 4 * HEARTBEAT_SECONDS
PoolKey = tuple[str, str]
"""(namespace, InferencePool name)."""


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One model server as last heard of."""

    endpoint: Endpoint
    pool: PoolKey
    uid: str
    """Allocation uid; empty for an external server."""
    allocation: str = ""
    ready: bool = False
    reason: str = "Registering"
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """None until it has said so, and when it has fallen silent; so too `waiting`."""
    history: History = ()
    """Totals that it said lately; empty where `kv_usage` would be None."""
    rates: Rates = UNKNOWN
    """Of this history."""
    heard_at: float = 0.0
    """Monotonic seconds."""
    drain: bool = False
    model: str | None = None
    """Folder of the model that its allocation was made for; None where that is not known."""
    healthy: bool = False
    """By its own word; `ready` when its weights are those of the pool as well."""
    denied: str = ""
    """What is the matter with its weights."""
    spoken: bool = False
    """It has said how it is since it registered here."""
    weights_checksum: str = ""
    weights_phase: str = ""
    weights_error: str = ""
    weights_attempt: int | None = None
    told: WeightsOrder | None = None
    """The order in the last answer to it."""
    obeys: WeightsOrder | None = None
    """The one before its last heartbeat: that is what it speaks of."""

    def serving(self, heard: bool, known_for: float = math.inf) -> Serving:
        return Serving(
            id=self.endpoint.id,
            heard=heard,
            known_for=known_for,
            healthy=self.healthy,
            version=self.endpoint.weights_version,
            checksum=self.weights_checksum,
            phase=self.weights_phase,
            error=self.weights_error,
            attempt=self.weights_attempt,
            obeys=self.obeys,
        )


class Endpoints:
    """All endpoints of all InferencePools, by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._states: dict[str, EndpointState] = {}
        self._weights: dict[PoolKey, WeightsStatus] = {}
        self.moved: Callable[[EndpointState], None] = lambda state: None
        """Called whenever an endpoint appears, vanishes, or changes readiness or weights."""
        self.weights_moved: Callable[[PoolKey], None] = lambda pool: None
        """Called when a pool serves other weights, or serves others as well."""

    def register(
        self,
        pool: PoolKey,
        identity: Identity,
        endpoint: Endpoint,
        model: str | None = None,
        weights: WeightsStatus | None = None,
    ) -> None:
        """An engine dialled in; it takes work once a heartbeat says that it is healthy, and has the right weights.

        `model`: what its allocation was made for; `weights`: the pool's, where nothing has been followed yet.
        """
        if weights is not None:
            self._weights.setdefault(pool, weights)
        old, uid = self._states.get(endpoint.id), identity.uid
        drain = old.drain if old and old.uid == uid else False
        now = self._clock.monotonic()
        self._put(EndpointState(endpoint, pool, uid, identity.allocation, heard_at=now, drain=drain, model=model))

    def follow(self, pool: PoolKey, weights: WeightsStatus | None) -> None:
        """What the pool's status says of its weights now; None for a pool that is gone."""
        if weights is None:
            self._weights.pop(pool, None)
            return
        before, self._weights[pool] = self._weights.get(pool), weights
        for state in [s for s in self._states.values() if s.pool == pool and s.uid]:
            denied = self._denial(state)
            if denied != state.denied:
                reason = denied if state.healthy or state.reason == state.denied else state.reason
                ready = state.healthy and not denied
                self._put(replace(state, denied=denied, ready=ready, reason=reason))

        if before is None or (before.current, before.history) != (weights.current, weights.history):
            self.weights_moved(pool)

    def weights(self, pool: PoolKey) -> WeightsStatus:
        return self._weights.get(pool, WeightsStatus())

    def versions(self, pool: PoolKey, *, ready: bool) -> dict[str, str]:
        """Endpoint id -> the weights that it has proven; of those that take new work, or of all."""
        found = (s for s in self._states.values() if s.pool == pool and ((s.ready and not s.drain) or not ready))
        return {s.endpoint.id: s.endpoint.weights_version for s in found}

    def told(self, id: str, order: WeightsOrder | None) -> None:
        """What it is answered; what it says next is about that."""
        state = self._states.get(id)
        if state is not None:
            self._states[id] = replace(state, told=order)

    def heartbeat(self, id: str, beat: EngineHeartbeat) -> bool:
        """Take over what an engine says of itself. False when it has to register first."""
        state = self._states.get(id)
        if state is None or state.endpoint.url != beat.url:
            return False
        endpoint = state.endpoint.model_copy(update={"weights_version": beat.weights_version})
        history = extended(state.history, beat.load)
        state = replace(
            state,
            endpoint=endpoint,
            healthy=beat.ready and bool(beat.weights_version),
            running=beat.running,
            waiting=beat.waiting,
            kv_usage=beat.kv_usage,
            history=history,
            rates=rates(history),
            heard_at=self._clock.monotonic(),
            weights_checksum=beat.weights_checksum,
            weights_phase=beat.weights_phase,
            weights_error=beat.weights_error,
            weights_attempt=beat.weights_attempt,
            spoken=True,
            obeys=state.told,
        )
        denied = self._denial(state)
        ready, reason = state.healthy and not denied, _reason(beat, denied)
        self._put(replace(state, denied=denied, ready=ready, reason=reason))
        return True

    def probed(self, pool: PoolKey, endpoint: Endpoint, *, ready: bool, reason: str) -> None:
        """What a probe of an external server found."""
        self._put(EndpointState(endpoint, pool, "", ready=ready, reason=reason, heard_at=self._clock.monotonic()))

    def eject(self, id: str, why: str) -> None:
        """A node agent could not use it: nothing new goes there until it is heard to be healthy again."""
        state = self._states.get(id)
        if state is not None and state.ready:
            log.warning("endpoint %s ejected: %s", id, why)
            unknown = replace(state, waiting=None, kv_usage=None, history=(), rates=UNKNOWN)
            self._put(replace(unknown, ready=False, healthy=False, reason=f"Ejected: {why}"))

    def drain(self, uid: str) -> None:
        for state in [s for s in self._states.values() if uid and s.uid == uid]:
            self._put(replace(state, drain=True))

    def forget(self, uid: str) -> None:
        """The allocation has ended."""
        for id in [i for i, s in self._states.items() if uid and s.uid == uid]:
            self._drop(id)

    def forget_external(self, pool: PoolKey, keep: set[str]) -> None:
        for id in [i for i, s in self._states.items() if s.pool == pool and not s.uid and i not in keep]:
            self._drop(id)

    def expire(self) -> None:
        """Eject what has fallen silent."""
        horizon = self._clock.monotonic() - STALE_SECONDS
        for id, state in list(self._states.items()):
            if state.ready and state.uid and state.heard_at < horizon:
                self.eject(id, f"no heartbeat for {STALE_SECONDS:g} s")

    def serving(self, uid: str, id: str) -> Serving:
        """What the endpoint of this allocation last said of its weights; nothing when it has been silent for too long."""
        state, now = self.of_allocation(uid), self._clock.monotonic()
        if state is None:
            return Serving(id, known_for=now - self._began)
        heard = state.spoken and now - state.heard_at < STALE_SECONDS
        return state.serving(heard, now - (self._began if heard else state.heard_at))

    def _denial(self, state: EndpointState) -> str:
        weights = self._weights.get(state.pool)
        if weights is None or state.model not in (None, weights.model):
            return ""  # of an earlier spec: it serves what it has until its successor is ready
        return denial(weights, state.serving(True))

    def get(self, id: str) -> EndpointState | None:
        return self._states.get(id)

    def of_allocation(self, uid: str) -> EndpointState | None:
        return next((s for s in self._states.values() if uid and s.uid == uid), None)

    def all(self) -> list[EndpointState]:
        return sorted(self._states.values(), key=lambda s: s.endpoint.id)

    def of_pool(self, pool: PoolKey) -> list[EndpointState]:
        return sorted((s for s in self._states.values() if s.pool == pool), key=lambda s: s.endpoint.id)

    def heap(self, pool: PoolKey, sessions: Mapping[str, int]) -> EndpointHeap:
        """Over the endpoints of this pool that take new work now."""
        ready = (s.endpoint for s in self._states.values() if s.pool == pool and s.ready and not s.drain)
        return EndpointHeap(ready, sessions)

    def _put(self, state: EndpointState) -> None:
        old = self._states.get(state.endpoint.id)
        self._states[state.endpoint.id] = state
        if old is None or _shown(old) != _shown(state):
            self._tell(state)

    def _drop(self, id: str) -> None:
        self._tell(self._states.pop(id))

    def _tell(self, state: EndpointState) -> None:
        ENDPOINTS_READY.set(sum(s.ready and not s.drain for s in self._states.values()))
        self.moved(state)


def _shown(state: EndpointState) -> tuple[object, ...]:
    """What others act on."""
    weights = (state.endpoint.weights_version, state.weights_phase, state.weights_error)
    return state.ready, state.reason, state.drain, *weights


def _reason(beat: EngineHeartbeat, denied: str) -> str:
    """The more telling of two words: one that says what is the matter, and the engine's own first unless it is of weights."""
    own = "" if beat.reason == beat.weights_error else beat.reason
    return next((word for word in (own, denied) if ":" in word), own or denied)


def endpoint_id(identity: Identity) -> str:
    return f"{identity.namespace}/{identity.allocation}"
