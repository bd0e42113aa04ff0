"""Sessions of external agents: request and view."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollyard.kinds.base import NAME_PATTERN, WireModel, shared
from rollyard.kinds.rollout import RolloutId, Sampling
from rollyard.kinds.weights import VERSION_PATTERN

IDLE_SECONDS, MAX_IDLE_SECONDS = 900.0, 14_400.0


class SessionRequest(WireModel):
    """Body of POST /v1/sessions."""

    id: RolloutId | None = None
    """Id chosen by the caller. A request with the id and the body of an existing session attaches to that session. With
    the same id and another body the answer is a 409."""
    pool: str = Field(pattern=NAME_PATTERN)
    """InferencePool whose model answers the calls."""
    sampling: Sampling = shared(Sampling())
    caller_sampling: bool = False
    """True: the parameters in a call override `sampling` for that call. False: `sampling` applies to all calls."""
    max_calls: int | None = Field(default=None, ge=1, le=10_000)
    """Greatest number of model calls; further calls are refused. Null for no limit."""
    tool_parser: str | None = Field(default=None, min_length=1, max_length=64)
    """Format of the model's tool calls. Default: the format that fits the model's chat template."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Oldest version of the pool's weights that may sample. A session opens only if an endpoint serves this version or a
    newer one."""
    idle_seconds: float = Field(default=IDLE_SECONDS, ge=1, le=MAX_IDLE_SECONDS)
    """The session is deleted after this many seconds without a model call or another request for the session."""


class SessionView(WireModel):
    """Session without its trajectory."""

    id: str
    namespace: str
    pool: str
    state: Literal["Open", "Closed"]
    endpoint: str
    """Id of the model server that the session uses."""
    calls: int
    """Answered model calls."""
    in_flight: int
    waiting: str = ""
    """Reason why the calls in flight have no model server; empty if the calls have a model server."""
    tokens: int
    """Tokens in all segments, including prompts."""
    truncated: bool
    """True: the session reached its limit of calls or of tokens, or the limit of the context."""
    created_at: float
    """Unix seconds."""
    expires_in_idle: float
    """Seconds until the session is deleted if nobody calls or reads it."""
    durable: bool = True
    """True: what was answered is stored, and the session outlives the server."""


class SessionOpened(SessionView):
    """Answer to POST."""

    base_url: str
    """Base URL for clients of OpenAI's API."""
    anthropic_base_url: str
    """Base URL for clients of Anthropic's API. Such clients append `/v1` themselves."""
    key: str
    """Token of this session only, for `Authorization: Bearer` or `x-api-key`."""
