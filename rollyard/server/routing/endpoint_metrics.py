"""Metrics for display, of one endpoint or of several endpoints together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.server.routing.admission import Admission
from rollyard.server.routing.endpoint_rates import EndpointRates, merge
from rollyard.server.routing.endpoint_state import EndpointState

DIGITS = 3
"""Number of significant digits. Further digits are noise, and would make each new status differ from the last status."""


def has_metrics(state: EndpointState) -> bool:
    """Whether any load of the engine is known: its number of waiting requests, or totals."""
    return state.waiting is not None or bool(state.history)


def metrics_of(state: EndpointState) -> EndpointMetrics:
    return total_metrics([state])


def total_metrics(states: Sequence[EndpointState]) -> EndpointMetrics:
    """Sums, means and shares over the endpoints with known values."""
    heard = [state for state in states if has_metrics(state)]
    usage = [state.kv_usage for state in heard if state.kv_usage is not None]
    waiting = [state.waiting for state in heard if state.waiting is not None]
    return _metrics(
        merge(state.rates for state in heard),
        running=sum(state.running for state in heard) if heard else None,
        waiting=sum(waiting) if waiting else None,
        kv_usage=_rounded(sum(usage) / len(usage)) if usage else None,
    )


def endpoint_status(
    state: EndpointState, sessions: Mapping[str, int], shown: EndpointMetrics, admission: Admission | None = None
) -> EndpointStatus:
    """Return an endpoint's entry for a pool's status and for `top`. `admission`: the limit to show; None for the
    endpoint's present limit."""
    admission = admission or state.admission
    return EndpointStatus(
        id=state.endpoint.id,
        url=state.endpoint.url,
        sessions=sessions.get(state.endpoint.id, 0),
        weights_version=state.endpoint.weights_version,
        ready=state.ready,
        reason=str(state.reason or ""),
        capacity=state.capacity,
        draining=state.drain,
        max_sessions=admission.limit,
        full=admission.why,
        **dict(shown),
    )


def _metrics(
    rates: EndpointRates, *, running: int | None, waiting: int | None, kv_usage: float | None
) -> EndpointMetrics:
    return EndpointMetrics(
        tokens_per_second=_rounded(rates.generated_tokens),
        prompt_tokens_per_second=_rounded(rates.prompt_tokens),
        running=running,
        waiting=waiting,
        kv_usage=kv_usage,
        prefix_hit_rate=_rounded(rates.prefix_hit_rate),
        first_token_seconds=_rounded(rates.mean_first_token_seconds),
        preemptions_per_second=_rounded(rates.preemptions),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
