"""The registry of model servers: who registered, who is healthy by its own heartbeat, who was ejected.

It lives in memory: engines register again within seconds of a server's restart, and until then nothing is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rollyard.clock import Clock
from rollyard.inference.heap import EndpointHeap
from rollyard.inference.load import UNKNOWN, History, Rates, extended, rates
from rollyard.kinds.wire import Endpoint, EngineHeartbeat, Identity
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


class Endpoints:
    """All endpoints of all InferencePools, by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, EndpointState] = {}
        self.moved: Callable[[EndpointState], None] = lambda state: None
        """Called whenever an endpoint appears, vanishes, or changes readiness."""

    def register(self, pool: PoolKey, identity: Identity, endpoint: Endpoint) -> None:
        """An engine dialled in; it takes work once a heartbeat says that it is healthy."""
        old, uid = self._states.get(endpoint.id), identity.uid
        drain = old.drain if old and old.uid == uid else False
        self._put(
            EndpointState(endpoint, pool, uid, identity.allocation, heard_at=self._clock.monotonic(), drain=drain)
        )

    def heartbeat(self, id: str, beat: EngineHeartbeat) -> bool:
        """Take over what an engine says of itself. False when it has to register first."""
        state = self._states.get(id)
        if state is None or state.endpoint.url != beat.url:
            return False
        endpoint = state.endpoint.model_copy(update={"weights_version": beat.weights_version})
        history = extended(state.history, beat.load)
        self._put(
            replace(
                state,
                endpoint=endpoint,
                ready=beat.ready and bool(beat.weights_version),
                reason=beat.reason,
                running=beat.running,
                waiting=beat.waiting,
                kv_usage=beat.kv_usage,
                history=history,
                rates=rates(history),
                heard_at=self._clock.monotonic(),
            )
        )
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
            self._put(replace(unknown, ready=False, reason=f"Ejected: {why}"))

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
        if old is None or (old.ready, old.reason, old.drain) != (state.ready, state.reason, state.drain):
            self._tell(state)

    def _drop(self, id: str) -> None:
        self._tell(self._states.pop(id))

    def _tell(self, state: EndpointState) -> None:
        ENDPOINTS_READY.set(sum(s.ready and not s.drain for s in self._states.values()))
        self.moved(state)


def endpoint_id(identity: Identity) -> str:
    return f"{identity.namespace}/{identity.allocation}"
