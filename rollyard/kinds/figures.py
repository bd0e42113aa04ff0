"""How busy model servers are: the figures that status, metrics and `top` share. What nobody says is left out, never 0."""

from __future__ import annotations

from rollyard.kinds.base import Observed


class Figures(Observed):
    """Of one endpoint, or of all of a pool together."""

    tokens_per_second: float | None = None
    """Tokens sampled a second, over the last 15 seconds; so too the other rates."""
    prompt_tokens_per_second: float | None = None
    """Prompt tokens taken in a second, those found in the prefix cache included."""
    running: int | None = None
    """Requests in the batch."""
    waiting: int | None = None
    """Requests that wait in the engine for room in the batch."""
    kv_usage: float | None = None
    """Filled share of the key-value cache, 0 to 1; of a pool the mean."""
    prefix_hit_rate: float | None = None
    """Share of the prompt tokens looked up in the prefix cache that were found, 0 to 1; left out while none is looked up."""
    first_token_seconds: float | None = None
    """Mean time from a request's arrival at the engine to its first token; left out while none comes."""
    preemptions_per_second: float | None = None
    """Requests put back for want of key-value cache."""
