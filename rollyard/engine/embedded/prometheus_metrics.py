"""The engine's counters under vLLM's metric names, so that one parser reads the load of vLLM and of this
engine."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from rollyard.engine.embedded.continuous_batching import Stats

_LABELS = ("model_name", "engine")


class EngineMetrics(Collector):
    """Reads `stats` at each scrape."""

    def __init__(self, stats: Stats, model_name: str) -> None:
        self._stats = stats
        self._labels = (model_name, "0")
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        s = self._stats
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", s.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for a slot.", s.waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Filled share of the running requests' cache, 0 to 1.", s.kv_usage
        )
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", s.prefix_queries)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", s.prefix_hits)
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens, including tokens found in the cache.", s.prompt_tokens
        )
        yield self._counter("vllm:generation_tokens", "Tokens sampled.", s.generation_tokens)
        yield self._counter("vllm:num_preemptions", "Always 0: a request keeps its slot until its end.", 0)
        first = SummaryMetricFamily("vllm:time_to_first_token_seconds", "From arrival to first token.", labels=_LABELS)
        first.add_metric(self._labels, count_value=s.first_tokens, sum_value=s.first_token_seconds)
        yield first

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
