"""State of one model server after its last report, and its readiness and reasons for others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rollyard.kinds.base import Reason
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.admission import UNLIMITED, Admission
from rollyard.server.routing.endpoint_rates import UNKNOWN, EndpointRates, History
from rollyard.server.routing.health import EJECTED, TRUSTED, EndpointTrust
from rollyard.server.weights.engine_target import EndpointWeights
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import UNHEALTHY, WeightsReport, WeightsTarget

SLOW_START_SECONDS, SLOW_START_STEPS = 10.0, 10
"""Length and steps of the slow start. Without it a new endpoint, which is empty, would get all new work with a cold cache."""
REGISTERING = Reason("Registering")
OUT_REASONS = (EJECTED, UNHEALTHY)
"""Reasons of an endpoint that is out, from us or from an engine's supervisor. Other reasons mean loading or an orderly end."""


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One model server after its last report."""

    endpoint: Endpoint
    pool: PoolKey
    uid: str
    """Allocation uid; empty for an external server."""
    allocation: str = ""
    ready: bool = False
    reason: Reason | None = REGISTERING
    """Reason why it is not ready; None if it is ready."""
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of the cache; None before the first report, and after it has become silent. The same holds for `waiting`."""
    history: History = ()
    """Totals that were reported recently; empty when `kv_usage` is None."""
    rates: EndpointRates = UNKNOWN
    """Rates from this history."""
    heard_at: float = 0.0
    """Monotonic seconds of the last report."""
    drain: bool = False
    node: str = ""
    capacity: float = 1.0
    """Capacity relative to the other endpoints of the pool, such as the number of GPUs."""
    trust: EndpointTrust = TRUSTED
    admission: Admission = UNLIMITED
    warm_at: float = 0.0
    """End of the slow start (monotonic seconds)."""
    healthy: bool = False
    """Health by its own report, or by a probe if it sends none. To be `ready` it also needs trust and the right weights."""
    engine_reason: Reason | None = None
    """Reason why it is not healthy."""
    model: str | None = None
    """Folder of the model for which its allocation was made; None if unknown."""
    why_not_routable: Reason | None = None
    """Reason why it gets no new work because of its weights."""
    has_reported: bool = False
    """Whether the endpoint has reported since it registered here."""
    weights: WeightsReport = field(default_factory=WeightsReport)
    last_order: WeightsTarget | None = None
    """The target in the last answer to it."""
    acknowledged_order: WeightsTarget | None = None
    """The target that it had before its last heartbeat, which this report is about."""

    @property
    def is_accepting(self) -> bool:
        """Whether the endpoint may get new work at all."""
        return self.ready and not self.drain

    @property
    def is_out(self) -> bool:
        """Whether the endpoint does not answer. A request that waits there should continue at another endpoint."""
        silent = self.engine_reason is not None and self.engine_reason.word in OUT_REASONS
        return not self.ready and (self.trust.ejected or silent)

    def capacity_share(self, now: float) -> float:
        """Share of the endpoint's capacity that may be filled now; it grows in steps to 1."""
        left = self.warm_at - now
        if left <= 0:
            return 1.0
        return max(1, int(SLOW_START_STEPS * (1 - left / SLOW_START_SECONDS)) + 1) / SLOW_START_STEPS

    def weights_report(self, heard: bool, known_for: float = math.inf) -> EndpointWeights:
        return EndpointWeights(self.endpoint.id, self.weights, heard, known_for, self.healthy, self.acknowledged_order)


def why_not_ready(state: EndpointState) -> Reason | None:
    """Reason why the endpoint gets no new work: the engine's own, then our trust, then its weights; None if it gets work."""
    if not state.healthy and state.uid:
        return _main_reason(state) if state.has_reported or state.engine_reason else REGISTERING
    if (why := state.trust.why) is not None:
        return Reason(EJECTED, str(why)) if state.uid and why.word != EJECTED else why
    if state.why_not_routable:
        return _main_reason(state)
    return None if state.healthy else Reason("Probing")


def _main_reason(state: EndpointState) -> Reason:
    """Return its own reason or that of its weights: the first, unless only the second has a message."""
    reasons = [reason for reason in (state.engine_reason, state.why_not_routable) if reason is not None]
    return next((reason for reason in reasons if reason.message), (*reasons, REGISTERING)[0])


def published(state: EndpointState) -> tuple[object, ...]:
    """Return the fields of the state on which other parts act."""
    return state.ready, state.reason, state.drain, state.admission.limit is None, state.weights


def endpoint_id(identity: Identity) -> str:
    return f"{identity.namespace}/{identity.allocation}"
