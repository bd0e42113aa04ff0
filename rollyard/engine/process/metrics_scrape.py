"""Parses the load of an engine from its Prometheus page, in one pass. vLLM and the embedded engine have such a page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

from rollyard.wire.engine import EngineLoad

RUNNING, WAITING = ("vllm:num_requests_running",), ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
TOTALS: dict[str, tuple[str, ...]] = {
    "generated_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "first_tokens": ("vllm:time_to_first_token_seconds_count",),
}
"""Field of `EngineLoad` -> vLLM's metric, then its name in older versions. If a page has both, the first is used."""
FIRST_TOKEN_SECONDS = ("vllm:time_to_first_token_seconds_sum",)

_WANTED = frozenset(chain(RUNNING, WAITING, KV_USAGE, FIRST_TOKEN_SECONDS, *TOTALS.values()))
_PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The values of one scrape; None for a value that is not on the page."""

    running: int | None = None
    """Requests in the batch."""
    waiting: int | None = None
    """Requests that wait for space in the batch."""
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1."""
    totals: EngineLoad | None = None
    """Counters since the engine's start."""


def read_load(page: str, *, life: int = 0, at: float = 0.0) -> LoadSample:
    """Parse a page. If the page has values of several engines, their cache use is averaged and the other values are
    added. `life`, `at`: see `EngineLoad`."""
    found = _samples(page)
    totals: dict[str, float] = {
        f: whole for f, names in TOTALS.items() if (whole := _sum_as_integer(found, names)) is not None
    }
    if (seconds := _sum(found, FIRST_TOKEN_SECONDS)) is not None:
        totals["first_token_seconds"] = seconds
    usage = _values_of(found, KV_USAGE)
    return LoadSample(
        running=_sum_as_integer(found, RUNNING),
        waiting=_sum_as_integer(found, WAITING),
        kv_usage=sum(usage) / len(usage) if usage else None,
        totals=EngineLoad.model_validate({"life": life, "at": at, **totals}) if totals else None,
    )


def _samples(page: str) -> dict[str, list[float]]:
    """Return the values of the needed series by name. To save time, lines without vLLM's prefix are not parsed."""
    found: dict[str, list[float]] = {}
    for line in page.split("\n"):
        if line.startswith(_PREFIX):
            series, _, text = line.rpartition(" ")
            name = series.partition("{")[0]
            if name in _WANTED and (value := _number(text)) is not None:
                found.setdefault(name, []).append(value)
    return found


def _number(text: str) -> float | None:
    """Parse a value; None for text that is not a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _values_of(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((found[name] for name in names if name in found), [])


def _sum(found: dict[str, list[float]], names: tuple[str, ...]) -> float | None:
    values = _values_of(found, names)
    return sum(values) if values else None


def _sum_as_integer(found: dict[str, list[float]], names: tuple[str, ...]) -> int | None:
    total = _sum(found, names)
    return None if total is None else int(total)
