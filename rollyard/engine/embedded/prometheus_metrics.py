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
        for kind, name, text, value in (
            (GaugeMetricFamily, "num_requests_running", "Requests in the batch.", s.running),
            (GaugeMetricFamily, "num_requests_waiting", "Requests that wait for a slot.", s.waiting),
            (
                GaugeMetricFamily,
                "kv_cache_usage_perc",
                "Filled share of the running requests' cache, 0 to 1.",
                s.kv_usage,
            ),
            (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens looked up in the cache.", s.prefix_queries),
            (CounterMetricFamily, "prefix_cache_hits", "Prompt tokens found in the cache.", s.prefix_hits),
            (
                CounterMetricFamily,
                "prompt_tokens",
                "Prompt tokens, including tokens found in the cache.",
                s.prompt_tokens,
            ),
            (CounterMetricFamily, "generation_tokens", "Tokens sampled.", s.generation_tokens),
            (CounterMetricFamily, "num_preemptions", "Always 0: a request keeps its slot until its end.", 0),
        ):
            family = kind(f"vllm:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        first = SummaryMetricFamily("vllm:time_to_first_token_seconds", "From arrival to first token.", labels=_LABELS)
        first.add_metric(self._labels, count_value=s.first_tokens, sum_value=s.first_token_seconds)
        yield first
