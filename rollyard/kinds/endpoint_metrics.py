"""Metrics of model servers, as a pool's status, Prometheus and `top` show them. An unknown value is left out, never 0."""

from __future__ import annotations

from rollyard.kinds.base import StatusModel


class EndpointMetrics(StatusModel):
    """Metrics of one endpoint, or of all endpoints of a pool together."""

    tokens_per_second: float | None = None
    """Tokens sampled per second. This rate and the other rates are means over the last 15 seconds."""
    prompt_tokens_per_second: float | None = None
    """Prompt tokens processed per second, including tokens found in the prefix cache."""
    running: int | None = None
    """Requests that the engine processes at present."""
    waiting: int | None = None
    """Requests that wait in the engine to be processed."""
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1. For a pool: the mean over the endpoints."""
    prefix_hit_rate: float | None = None
    """Share of the looked-up prompt tokens that were in the prefix cache, 0 to 1. Absent if no token was looked up."""
    first_token_seconds: float | None = None
    """Mean time from a request's arrival at the engine to its first token. Absent if no request got a first token."""
    preemptions_per_second: float | None = None
    """Requests per second that the engine interrupted because the key-value cache was full."""
