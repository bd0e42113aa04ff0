"""One model server as last heard of, and what follows from that for others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollyard.server.routing.admission import UNLIMITED, Admission
from rollyard.server.routing.endpoint_rates import UNKNOWN, EndpointRates, History
from rollyard.server.routing.health import TRUSTED, EndpointTrust
from rollyard.server.weights.engine_target import EndpointWeights
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import WeightsTarget

SLOW_START_SECONDS, SLOW_START_STEPS = 10.0, 10
"""A new endpoint is empty, and would take all new work until it is level: cold, at once. Its share grows in steps."""
PoolKey = tuple[str, str]
"""(namespace, InferencePool name)."""
OUT_SECONDS = ("Ejected", "Unhealthy")
"""Words of ours and of an engine's supervisor for one that has fallen silent; others say that it loads or ends in order."""


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
    rates: EndpointRates = UNKNOWN
    """Of this history."""
    heard_at: float = 0.0
    """Monotonic seconds."""
    drain: bool = False
    node: str = ""
    capacity: float = 1.0
    """Beside the others of its pool, such as GPUs."""
    trust: EndpointTrust = TRUSTED
    admission: Admission = UNLIMITED
    warm_at: float = 0.0
    """When its slow start is over (monotonic seconds)."""
    healthy: bool = False
    """By its own word, or by a probe for one that says none; `ready` when it is trusted and has the right weights as well."""
    engine_reason: str = ""
    """Why it is not healthy."""
    model: str | None = None
    """Folder of the model that its allocation was made for; None where that is not known."""
    why_not_routable: str = ""
    """What is the matter with its weights."""
    has_reported: bool = False
    """It has said how it is since it registered here."""
    weights_checksum: str = ""
    weights_phase: str = ""
    weights_error: str = ""
    weights_attempt: int | None = None
    weights_note: str | None = None
    published_state: WeightsTarget | None = None
    """The order in the last answer to it."""
    acknowledged_order: WeightsTarget | None = None
    """The one before its last heartbeat: that is what it speaks of."""

    @property
    def is_accepting(self) -> bool:
        """Whether new work may go there at all."""
        return self.ready and not self.drain

    @property
    def is_out(self) -> bool:
        """It does not answer: a request that waits there should go on elsewhere."""
        return not self.ready and (self.trust.ejected or self.engine_reason.partition(":")[0] in OUT_SECONDS)

    def capacity_share(self, now: float) -> float:
        """Of its capacity, what it may have of the load: from one step to all of them."""
        left = self.warm_at - now
        if left <= 0:
            return 1.0
        return max(1, int(SLOW_START_STEPS * (1 - left / SLOW_START_SECONDS)) + 1) / SLOW_START_STEPS

    def weights_report(self, heard: bool, known_for: float = math.inf) -> EndpointWeights:
        return EndpointWeights(
            id=self.endpoint.id,
            last_report_at=heard,
            known_for=known_for,
            healthy=self.healthy,
            version=self.endpoint.weights_version,
            checksum=self.weights_checksum,
            phase=self.weights_phase,
            error=self.weights_error,
            attempt=self.weights_attempt,
            note=self.weights_note,
            acknowledged=self.acknowledged_order,
        )


def readiness(state: EndpointState) -> tuple[bool, str]:
    """Whether new work may go there, and why not: what an engine says of itself first, then our trust, then its weights."""
    if not state.healthy and state.uid:
        return False, _main_reason(state) if state.has_reported or state.engine_reason else "Registering"
    if state.trust.ejected:
        return False, f"Ejected: {state.trust.why}" if state.uid else state.trust.why
    if state.why_not_routable:
        return False, _main_reason(state)
    return state.healthy, "" if state.healthy else "Probing"


def _main_reason(state: EndpointState) -> str:
    """Of its own word and the one on its weights the first that says what is the matter."""
    words = (state.engine_reason, state.why_not_routable)
    return next((word for word in words if ":" in word), state.engine_reason or state.why_not_routable or "Registering")


def published(state: EndpointState) -> tuple[object, ...]:
    """What others act on."""
    weights = (state.endpoint.weights_version, state.weights_phase, state.weights_error)
    return state.ready, state.reason, state.drain, state.admission.limit is None, *weights


def endpoint_id(identity: Identity) -> str:
    return f"{identity.namespace}/{identity.allocation}"
