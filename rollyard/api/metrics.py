"""`GET /metrics`: metrics of the server, of pools, of model servers, and of batches.

Each scrape reads the metrics of model servers from the registry of endpoints, so removed endpoints disappear. The
gauges have the same values as `rollyard top`. Totals start at zero with each start of an engine; Prometheus allows this
for counters. `metrics_text` writes the text for model servers and batches. For model servers prometheus_client would
take seven times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import generate_latest

from rollyard.api.metrics_text import family, label
from rollyard.api.services import SERVICES
from rollyard.core.telemetry import REGISTRY
from rollyard.kinds.batch import DeliveryBias
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.metric_history import POOL_METRICS
from rollyard.kinds.pool import PoolKey
from rollyard.server.batches.batch_view import bias, informative_share
from rollyard.server.routing.endpoint_metrics import endpoint_status, metrics_of
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.store.batch_records import BatchRecord, LengthSums
from rollyard.store.metric_buckets import Bucket
from rollyard.store.metric_tables import TrackKey
from rollyard.wire.engine import EngineLoad

GAUGES: dict[str, tuple[str, Callable[[EndpointStatus], float | None]]] = {
    "ready": ("1 if the endpoint accepts work, else 0.", lambda e: int(e.ready)),
    "sessions": ("Live sessions on the endpoint, of rollouts and of external agents.", lambda e: e.sessions),
    "requests_running": ("Requests in the batch.", lambda e: e.running),
    "requests_waiting": ("Requests that wait for a place in the batch.", lambda e: e.waiting),
    "kv_usage": ("Filled share of the key-value cache, 0 to 1.", lambda e: e.kv_usage),
    "tokens_per_second": ("Tokens sampled a second, over the last 15 s.", lambda e: e.tokens_per_second),
    "prompt_tokens_per_second": (
        "Prompt tokens a second, including tokens found in the prefix cache, over the last 15 s.",
        lambda e: e.prompt_tokens_per_second,
    ),
    "prefix_hit_rate": (
        "Share of prompt tokens found in the prefix cache, over the last 15 s.",
        lambda e: e.prefix_hit_rate,
    ),
    "first_token_seconds": ("Mean time to the first token, over the last 15 s.", lambda e: e.first_token_seconds),
    "preemptions_per_second": (
        "Requests a second interrupted because the cache was full, over the last 15 s.",
        lambda e: e.preemptions_per_second,
    ),
}
COUNTERS: dict[str, tuple[str, Callable[[EngineLoad], float | None]]] = {
    "generated_tokens": ("Tokens sampled.", lambda load: load.generated_tokens),
    "prompt_tokens": ("Prompt tokens, including tokens found in the prefix cache.", lambda load: load.prompt_tokens),
    "prefix_queries": ("Prompt tokens looked up in the prefix cache.", lambda load: load.prefix_queries),
    "prefix_hits": ("Prompt tokens found in the prefix cache.", lambda load: load.prefix_hits),
    "preemptions": ("Requests interrupted because the cache was full.", lambda load: load.preemptions),
    "first_tokens": ("Requests that have received their first token.", lambda load: load.first_tokens),
    "first_tokens_seconds": (
        "Sum of the times from arrival to the first token.",
        lambda load: load.first_token_seconds,
    ),
}


@dataclass(frozen=True, slots=True)
class _EndpointRow:
    labels: str
    """Labels as Prometheus's text format has them between braces: `name="value",…`."""
    shown: EndpointStatus
    load: EngineLoad | None


BIASES = ("tokens", "turns", "seconds")

BATCH_GAUGES: dict[str, tuple[str, Callable[[BatchRecord], int]]] = {
    "running": ("Batches that have not ended.", lambda batch: 1),
    "groups_in_flight": ("Groups with at least one rollout that has not ended.", lambda batch: batch.in_flight),
    "groups_unacknowledged": (
        "Delivered groups that are not acknowledged.",
        lambda batch: batch.delivered - batch.acknowledged,
    ),
    "rollouts_unfinished": ("Rollouts of running batches that have not ended.", lambda batch: batch.unfinished),
}


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", _metrics)]


async def _metrics(request: web.Request) -> web.Response:
    """Return metrics in Prometheus's text format."""
    services = request.app[SERVICES]
    states, sessions = services.endpoints.all(), services.endpoints.sessions.counts()
    # In a thread, because a thousand endpoints would block the event loop.
    endpoints = await asyncio.to_thread(endpoint_metrics, states, sessions)
    batches = batch_metrics(await services.store.batches.running())
    pools = pool_metrics(services.latest_metrics())
    saved = saved_work_metrics(await services.store.rollouts.all_resume_totals())
    text = pools + endpoints + batches + saved
    return web.Response(body=generate_latest(REGISTRY) + text.encode(), content_type="text/plain")


def pool_metrics(latest: Sequence[tuple[TrackKey, Bucket]]) -> str:
    """Return the last sample of each pool in Prometheus's text format. A sample is at most 10 s old."""
    lines: list[str] = []
    for kind, names in POOL_METRICS.items():
        pools = [
            (f"{label('namespace', key.namespace)},{label('pool', key.pool)}", bucket.measures)
            for key, bucket in latest
            if key.kind == kind and not key.endpoint
        ]
        for i, name in enumerate(names):
            samples = [(labels, measure and measure.mean) for labels, row in pools for measure in row[i : i + 1]]
            text = f"{name.replace('_', ' ').capitalize()} of a {kind}; see /v1/history."
            lines += family(f"rollyard_{kind.lower()}_{name}", "gauge", text, samples)
    return "".join(lines)


def saved_work_metrics(totals: Mapping[PoolKey, tuple[int, int]]) -> str:
    """Return the bytes that the server keeps for rollouts in RUN, by pool."""
    samples = [
        (f"{label('namespace', key.namespace)},{label('pool', key.name)},{label('what', what)}", float(size))
        for key, sizes in totals.items()
        for what, size in zip(("turns", "snapshots"), sizes, strict=True)
    ]
    text = "Bytes of saved turns and of snapshots with which rollouts in RUN can go on elsewhere."
    return "".join(family("rollyard_saved_work_bytes", "gauge", text, samples))


def endpoint_metrics(states: Sequence[EndpointState], sessions: Mapping[str, int]) -> str:
    """Return the metrics of endpoints in Prometheus's text format, 0.0.4."""
    rows = [_row(state, sessions) for state in states]
    return "".join(_families(rows))


def _row(state: EndpointState, sessions: Mapping[str, int]) -> _EndpointRow:
    namespace, pool = state.pool
    labels = f"{label('namespace', namespace)},{label('pool', pool)},{label('endpoint', state.endpoint.id)}"
    load = state.history[-1] if state.history else None
    return _EndpointRow(labels, endpoint_status(state, sessions, metrics_of(state)), load)


def _families(rows: Sequence[_EndpointRow]) -> Iterator[str]:
    versions = ((f"{row.labels},{label('weights_version', row.shown.weights_version)}", 1) for row in rows)
    yield from family("rollyard_endpoint_weights_info", "gauge", "Served weights version, as a label.", versions)
    for name, (text, gauge) in GAUGES.items():
        yield from family(f"rollyard_endpoint_{name}", "gauge", text, ((row.labels, gauge(row.shown)) for row in rows))
    loads = [(row.labels, row.load) for row in rows if row.load is not None]
    for name, (text, counter) in COUNTERS.items():
        yield from family(
            f"rollyard_endpoint_{name}_total", "counter", text, ((labels, counter(load)) for labels, load in loads)
        )


def batch_metrics(running: Sequence[BatchRecord]) -> str:
    """Return metrics in Prometheus's text format, labelled with the namespace and the pool."""
    pools: dict[str, list[BatchRecord]] = {}
    for batch in running:
        pools.setdefault(f"{label('namespace', batch.namespace)},{label('pool', batch.pool)}", []).append(batch)
    lines: list[str] = []
    for name, (text, gauge) in BATCH_GAUGES.items():
        samples = [(labels, float(sum(map(gauge, batches)))) for labels, batches in pools.items()]
        lines += family(f"rollyard_batches_{name}", "gauge", text, samples)
    ratios = [(labels, _bias(batches)) for labels, batches in pools.items()]
    biases = [(f"{labels},{label('of', of)}", getattr(found, of)) for labels, found in ratios for of in BIASES]
    shares = [(labels, informative_share(batches)) for labels, batches in pools.items()]
    text = "Groups whose rewards differ / groups with a verdict and at least two rewards, of running batches."
    lines += family("rollyard_batches_informative_share", "gauge", text, shares)
    lines += family(
        "rollyard_batches_bias", "gauge", "Mean length of delivered rollouts / of informative ones.", biases
    )
    return "".join(lines)


def _bias(batches: Sequence[BatchRecord]) -> DeliveryBias:
    delivered = sum((batch.delivered_lengths for batch in batches), LengthSums())
    return bias(delivered, sum((batch.whole_lengths for batch in batches), LengthSums()))
