"""State of one model server after its last report, with its readiness and the reasons why it is not ready."""

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
from rollyard.wire.tool_proof import ToolProof

SLOW_START_SECONDS, SLOW_START_STEPS = 10.0, 10
"""Length and steps of the slow start. Without a slow start, a new endpoint would get all new work, because it has no
sessions yet, and would begin all of this work with a cold cache."""
REGISTERING = Reason("Registering")
OUT_REASONS = (EJECTED, UNHEALTHY)
"""Values of `engine_reason` for an endpoint that is out: it has become silent, or the engine's supervisor reports it as
unhealthy. With any other value, the endpoint is still loading, or is ending normally."""


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
    """Reason why the endpoint is not ready; None if it is ready."""
    running: int = 0
    waiting: int | None = None
    kv_usage: float | None = None
    """Filled share of the cache. `kv_usage` and `waiting` are None before the first report, while the endpoint is
    silent, and if the engine does not report the value."""
    history: History = ()
    """Recently reported totals; empty before the first report and while the endpoint is silent."""
    rates: EndpointRates = UNKNOWN
    """Rates computed from `history`."""
    heard_at: float = 0.0
    """Monotonic seconds of the last report or registration; 0 for an external server."""
    drain: bool = False
    node: str = ""
    capacity: float = 1.0
    """Capacity relative to the other endpoints of the pool, such as the number of GPUs."""
    trust: EndpointTrust = TRUSTED
    admission: Admission = UNLIMITED
    warm_at: float = 0.0
    """End of the slow start (monotonic seconds)."""
    healthy: bool = False
    """Health by the engine's report; for an external server, by a probe. `ready` also requires trust and the right
    weights."""
    engine_reason: Reason | None = None
    """Reason why the endpoint is not healthy."""
    model: str | None = None
    """Folder of the model for which the allocation was made; None if unknown."""
    why_not_routable: Reason | None = None
    """Reason why the endpoint's weights do not permit new work; None if they permit it."""
    has_reported: bool = False
    """Whether the endpoint has reported since it registered with this server."""
    weights: WeightsReport = field(default_factory=WeightsReport)
    tools: ToolProof | None = None
    """Whether the model's tool calls are read, by the engine's own check; None before it, and for an external server."""
    last_order: WeightsTarget | None = None
    """Target in the last answer to the endpoint."""
    acknowledged_order: WeightsTarget | None = None
    """Target that the endpoint had received before its last heartbeat. `weights` is about this target."""

    @property
    def is_accepting(self) -> bool:
        """Whether the endpoint may get new work as long as it is not full."""
        return self.ready and not self.drain

    @property
    def is_out(self) -> bool:
        """Whether the endpoint is out: ejected (after complaints, a failed probe or missing heartbeats), or unhealthy.
        Its requests should continue at another endpoint."""
        has_out_reason = self.engine_reason is not None and self.engine_reason.word in OUT_REASONS
        return not self.ready and (self.trust.ejected or has_out_reason)

    def capacity_share(self, now: float) -> float:
        """Share of the endpoint's capacity that may be filled now. The share grows in steps to 1."""
        left = self.warm_at - now
        if left <= 0:
            return 1.0
        return max(1, int(SLOW_START_STEPS * (1 - left / SLOW_START_SECONDS)) + 1) / SLOW_START_STEPS

    def weights_report(self, heard: bool, known_for: float = math.inf) -> EndpointWeights:
        return EndpointWeights(self.endpoint.id, self.weights, heard, known_for, self.healthy, self.acknowledged_order)


def why_not_ready(state: EndpointState) -> Reason | None:
    """Return why the endpoint is not ready; None if it is ready.

    The reason of an unhealthy engine comes first (see `_main_reason`), then the reason of an ejection, then the reason
    of the weights.
    """
    if not state.healthy and state.uid:
        return _main_reason(state) if state.has_reported or state.engine_reason else REGISTERING
    if (why := state.trust.why) is not None:
        return Reason(EJECTED, str(why)) if state.uid and why.word != EJECTED else why
    if state.why_not_routable:
        return _main_reason(state)
    return None if state.healthy else Reason("Probing")


def _main_reason(state: EndpointState) -> Reason:
    """Return the engine's own reason. If it is missing, or has no message and the reason of the weights has one, return
    the reason of the weights. Return REGISTERING if both are missing."""
    reasons = [reason for reason in (state.engine_reason, state.why_not_routable) if reason is not None]
    return next((reason for reason in reasons if reason.message), (*reasons, REGISTERING)[0])


def published(state: EndpointState) -> tuple[object, ...]:
    """Return the fields whose changes other parts are notified about."""
    return state.ready, state.reason, state.drain, state.admission.limit is None, state.weights, state.tools


def endpoint_id(identity: Identity) -> str:
    return f"{identity.namespace}/{identity.allocation}"
