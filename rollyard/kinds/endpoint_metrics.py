"""Metrics of model servers for status, Prometheus and `top`. An unknown value is left out, never 0."""

from __future__ import annotations

from rollyard.kinds.base import StatusModel


class EndpointMetrics(StatusModel):
    """Metrics of one endpoint, or of all endpoints of a pool together."""

    tokens_per_second: float | None = None
    """Tokens sampled per second. All rates here are those of the last 15 seconds."""
    prompt_tokens_per_second: float | None = None
    """Prompt tokens processed per second, including those found in the prefix cache."""
    running: int | None = None
    """Requests in the batch."""
    waiting: int | None = None
    """Requests that wait in the engine for a place in the batch."""
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1. For a pool: the mean of its endpoints."""
    prefix_hit_rate: float | None = None
    """Share of the looked-up prompt tokens that were in the prefix cache, 0 to 1. Absent if no token is looked up."""
    first_token_seconds: float | None = None
    """Mean time from a request's arrival at the engine to its first token. Absent if there are no first tokens."""
    preemptions_per_second: float | None = None
    """Requests per second that the engine interrupted because its key-value cache was full."""
