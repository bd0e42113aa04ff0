"""Metrics of endpoints for a pool's status. They change all the time, and each copy causes a write, so copies are rare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollyard.core.clock import Clock
from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.admission import Admission
from rollyard.server.routing.endpoint_metrics import has_metrics, metrics_of, total_metrics
from rollyard.server.routing.endpoint_state import EndpointState

STATUS_METRICS_SECONDS = 30.0
"""A copy of the metrics that is this old is replaced."""


@dataclass(frozen=True, slots=True)
class StatusMetrics:
    taken_at: float
    """Monotonic seconds."""
    endpoints: Mapping[str, EndpointMetrics]
    """Endpoint id -> metrics, for endpoints whose load is known."""
    total: EndpointMetrics
    limits: Mapping[str, Admission]
    """Endpoint id -> limit of sessions, for endpoints with a limit. It is copied too, because a limit and its text change
    with each heartbeat."""


class StatusMetricsCache:
    """Last copy of the metrics for each pool.

    A new copy is taken if the last copy is old. A new copy is also taken if an endpoint's load has become known or
    unknown, or if an endpoint has got or lost its limit of sessions. While no endpoint's load is known, no copy
    is kept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[PoolKey, StatusMetrics] = {}

    def of(self, pool: PoolKey, states: Sequence[EndpointState]) -> StatusMetrics:
        now, heard = self._clock.monotonic(), [state for state in states if has_metrics(state)]
        last, limits = (
            self._last.get(pool),
            {s.endpoint.id: s.admission for s in states if s.admission.limit is not None},
        )
        same = last is not None and last.endpoints.keys() == {s.endpoint.id for s in heard}
        same = same and last is not None and last.limits.keys() == limits.keys()
        if last is not None and same and now - last.taken_at < STATUS_METRICS_SECONDS:
            return last
        fresh = StatusMetrics(
            now, {state.endpoint.id: metrics_of(state) for state in heard}, total_metrics(heard), limits
        )
        if heard:
            self._last[pool] = fresh
        else:
            self._last.pop(pool, None)
        return fresh
