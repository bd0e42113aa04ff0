"""`GET /metrics`: what the server counts, and what its model servers say of themselves.

The latter are made from the registry of endpoints at each scrape: what is gone from there is gone from here. Figures are
those of `top`; totals begin anew with each start of an engine, which is what Prometheus expects of a counter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from rollyard.api.services import SERVICES
from rollyard.inference.endpoints import EndpointState
from rollyard.inference.figures import figures, status
from rollyard.kinds.pools import EndpointStatus
from rollyard.kinds.wire import EngineLoad
from rollyard.telemetry import REGISTRY

LABELS = ("namespace", "pool", "endpoint")
GAUGES: dict[str, tuple[str, Callable[[EndpointStatus], float | None]]] = {
    "ready": ("Whether it takes work.", lambda e: float(e.ready)),
    "sessions": ("Live rollouts on it.", lambda e: e.sessions),
    "requests_running": ("Requests in its batch.", lambda e: e.running),
    "requests_waiting": ("Requests that wait for room in its batch.", lambda e: e.waiting),
    "kv_usage": ("Filled share of its key-value cache, 0 to 1.", lambda e: e.kv_usage),
    "tokens_per_second": ("Tokens sampled, over the last 15 s.", lambda e: e.tokens_per_second),
    "prompt_tokens_per_second": ("Prompt tokens taken in, the same.", lambda e: e.prompt_tokens_per_second),
    "prefix_hit_rate": ("Share of prompt tokens found in its cache, the same.", lambda e: e.prefix_hit_rate),
    "first_token_seconds": ("Mean time to first token, the same.", lambda e: e.first_token_seconds),
    "preemptions_per_second": ("Requests put back for want of cache, the same.", lambda e: e.preemptions_per_second),
}
COUNTERS: dict[str, tuple[str, Callable[[EngineLoad], float | None]]] = {
    "generated_tokens": ("Tokens sampled.", lambda load: load.generated_tokens),
    "prompt_tokens": ("Prompt tokens taken in.", lambda load: load.prompt_tokens),
    "prefix_queries": ("Prompt tokens looked up in its cache.", lambda load: load.prefix_queries),
    "prefix_hits": ("Of those, found.", lambda load: load.prefix_hits),
    "preemptions": ("Requests put back for want of cache.", lambda load: load.preemptions),
}


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", _metrics)]


async def _metrics(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    states, sessions = services.endpoints.all(), await services.rollouts.sessions()
    # In a thread: with a thousand endpoints it takes a while.
    endpoints = await asyncio.to_thread(_rendered, states, sessions)
    return web.Response(body=generate_latest(REGISTRY) + endpoints, content_type="text/plain")


def _rendered(states: Sequence[EndpointState], sessions: Mapping[str, int]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Endpoints(states, sessions))
    return generate_latest(registry)


class _Endpoints(Collector):
    def __init__(self, states: Sequence[EndpointState], sessions: Mapping[str, int]) -> None:
        self._states = states
        self._labels = [(*state.pool, state.endpoint.id) for state in states]
        self._shown = [status(state, sessions, figures(state)) for state in states]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield self._weights()
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"rollyard_endpoint_{name}", text, labels=LABELS)
            for labels, shown in zip(self._labels, self._shown, strict=True):
                if (found := value(shown)) is not None:
                    gauge.add_metric(labels, found)
            yield gauge
        for name, (text, count) in COUNTERS.items():
            counter = CounterMetricFamily(f"rollyard_endpoint_{name}", text, labels=LABELS)
            for whose, load in self._loads():
                if (total := count(load)) is not None:
                    counter.add_metric(whose, total)
            yield counter
        yield self._first_tokens()

    def _loads(self) -> Iterator[tuple[tuple[str, ...], EngineLoad]]:
        return ((labels, s.history[-1]) for labels, s in zip(self._labels, self._states, strict=True) if s.history)

    def _weights(self) -> Metric:
        info = InfoMetricFamily("rollyard_endpoint_weights", "Version of the weights that it serves.", labels=LABELS)
        for labels, state in zip(self._labels, self._states, strict=True):
            info.add_metric(labels, {"weights_version": state.endpoint.weights_version})
        return info

    def _first_tokens(self) -> Metric:
        family = SummaryMetricFamily("rollyard_endpoint_first_token", "Time to first token, in s.", labels=LABELS)
        for labels, load in self._loads():
            if load.first_tokens is not None and load.first_token_seconds is not None:
                family.add_metric(labels, count_value=load.first_tokens, sum_value=load.first_token_seconds)
        return family
